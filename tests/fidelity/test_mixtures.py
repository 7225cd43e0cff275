"""The families of every run stand for the others."""

from fidelity.mixtures import NAMES, mixture, others, representatives


def test_every_family_has_the_mixture_of_exactly_one_family_of_every_run() -> None:
    for name in NAMES:
        assert [first for first in representatives() if mixture(first) == mixture(name)] != []
    assert len({mixture(first) for first in representatives()}) == len(representatives())
    assert sorted([*representatives(), *others()]) == sorted(NAMES)


def test_nesting_ageing_and_precision_are_told_apart() -> None:
    families = ["falcon_h1", "qwen3_next", "qwen3_5", "gear", "gemma3_text", "llama4", "mamba2"]
    assert len({mixture(name) for name in families}) == len(families)
    assert mixture("gear") == {
        "mlx_lm.models.cache.ArraysCache as state of mlx.core.float32",
        "mlx_lm.models.cache.KVCache as paged of mlx.core.float32",
        "mlx_lm.models.cache.RotatingKVCache as window64 of mlx.core.float32",
    }
