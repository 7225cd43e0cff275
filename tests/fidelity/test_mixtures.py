"""The families of every run stand for the others."""

from fidelity.mixtures import (
    EVERY_RUN,
    NAMES,
    OTHERS,
    REPRESENTATIVES,
    classes,
    mixture,
    smallest_of_each,
)


def test_every_mixture_of_classes_has_one_family_in_every_run() -> None:
    assert smallest_of_each() == REPRESENTATIVES
    assert len({mixture(name) for name in NAMES}) == len(REPRESENTATIVES)
    of_every_run = [classes(name) for name in EVERY_RUN]
    assert sorted(of_every_run) == sorted({classes(name) for name in NAMES})
    assert sorted([*EVERY_RUN, *OTHERS]) == sorted(NAMES)


def test_nesting_ageing_and_precision_are_told_apart() -> None:
    families = ["falcon_h1", "qwen3_next", "qwen3_5", "gear", "gemma3_text", "llama4", "mamba2"]
    assert len({mixture(name) for name in families}) == len(families)
    assert mixture("gear") == {
        "mlx_lm.models.cache.ArraysCache as state of mlx.core.float32",
        "mlx_lm.models.cache.KVCache as paged of mlx.core.float32",
        "mlx_lm.models.cache.RotatingKVCache as window64 of mlx.core.float32",
    }
