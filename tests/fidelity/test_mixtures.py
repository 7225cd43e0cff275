"""The families of every run stand for the others."""

import re

from fidelity.mixtures import (
    EVERY_RUN,
    NAMES,
    ONE_OF_EACH,
    OTHERS,
    REPRESENTATIVES,
    classes,
    mixture,
    smallest_of_each,
)


def test_every_mixture_of_classes_has_one_family() -> None:
    assert smallest_of_each() == REPRESENTATIVES
    assert len({mixture(name) for name in NAMES}) == len(REPRESENTATIVES)
    one_of_each = [classes(name) for name in ONE_OF_EACH]
    assert sorted(one_of_each) == sorted({classes(name) for name in NAMES})
    assert sorted([*EVERY_RUN, *OTHERS]) == sorted(NAMES)


def test_every_run_has_each_class_of_layers() -> None:
    """But for the one that only a single family has."""
    of_every_run, of_all = (
        {each for name in names for each in re.findall(r"[A-Z]\w+", classes(name))}
        for names in (EVERY_RUN, NAMES)
    )
    assert of_all - of_every_run <= {"LayerCache"}


def test_nesting_ageing_and_precision_are_told_apart() -> None:
    families = ["falcon_h1", "qwen3_next", "qwen3_5", "gear", "gemma3_text", "llama4", "mamba2"]
    assert len({mixture(name) for name in families}) == len(families)
    assert mixture("gear") == {
        "mlx_lm.models.cache.ArraysCache as state of mlx.core.float32",
        "mlx_lm.models.cache.KVCache as paged of mlx.core.float32",
        "mlx_lm.models.cache.RotatingKVCache as window64 of mlx.core.float32",
    }
