"""Which families keep the same mixture of caches, read off the caches that mlx-lm makes for them.

Families of one mixture take the same way through the store. Every run measures six of them that
have each class of layers and compute quickly, and the nightly run measures all.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from omlx_cache.adapters.registry import children, entry_of

NAMES = [name for name, family in zoo.FAMILIES.items() if not family.broken]
REPRESENTATIVES = (
    "qwen2", "gemma2", "youtu_llm", "deepseek_v32", "longcat_flash_ngram", "falcon_h1",
    "baichuan_m1", "minimax_m3_vl", "deepseek_v41", "mamba2", "recurrent_gemma", "olmo_hybrid",
    "mamba", "lfm2-vl", "gpt_oss", "olmo3", "llama4", "gear",
)  # fmt: skip
"""The smallest family of each mixture: written down, since finding them builds all models."""
IN_OTHER_SIZES = ("gemma2", "youtu_llm", "mamba", "lfm2-vl", "olmo3")
"""Those that have the classes of another one, in another precision or with another window."""
ONE_OF_EACH = tuple(name for name in REPRESENTATIVES if name not in IN_OTHER_SIZES)
EVERY_RUN = ("qwen2", "longcat_flash_ngram", "mamba2", "gpt_oss", "llama4", "gear")
"""Whole keys and values, several caches in a layer, states, windows, chunks, and a mixture."""
OTHERS = tuple(name for name in NAMES if name not in EVERY_RUN)

Mixture = frozenset[str]


class KeptLayers(NamedTuple):
    """What a family keeps, and how much there is to compute: layers, then parameters."""

    mixture: Mixture
    size: tuple[int, int]


@cache
def _kept(name: str) -> KeptLayers:
    family = zoo.FAMILIES[name]
    model = family.build(0)
    layers = make_prompt_cache(model)
    mixture = frozenset(f"{_described(layer)} of {family.dtype}" for layer in layers)
    parameters = sum(array.size for _, array in tree_flatten(model.parameters()))
    return KeptLayers(mixture, (len(layers), parameters))


def mixture(name: str) -> Mixture:
    """How each layer of a family's prompt cache is kept and ages, and in which precision."""
    return _kept(name).mixture


def classes(name: str) -> str:
    """The cache classes of a family and how their layers age, for a reader: no sizes, no dtypes."""
    plain = (re.sub(r" of mlx\.core\.\w+$", "", each) for each in mixture(name))
    return " + ".join(sorted({re.sub(r"(?:\w+\.)+|(?<=window)\d+", "", each) for each in plain}))


def _described(layer: Any) -> str:
    inner = children(layer)
    if inner is not None:
        return f"{type(layer).__name__}({', '.join(map(_described, inner))})"
    return f"{entry_of(layer)[1]} as {entry_of(layer)[0].group(layer).name}"


def smallest_of_each() -> tuple[str, ...]:
    """The smallest family of each mixture."""
    smallest: dict[Mixture, str] = {}
    for name in sorted(NAMES, key=lambda name: _kept(name).size):
        smallest.setdefault(mixture(name), name)
    return tuple(name for name in NAMES if name in smallest.values())


def nightly(values: Iterable[Any]) -> list[Any]:
    """Parameters that only the nightly run takes."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def one_of_each(names: Iterable[str] = NAMES) -> list[Any]:
    """Of these families: those of every run, and for the nightly run the others."""
    named = set(names)
    return [
        *(name for name in EVERY_RUN if name in named),
        *nightly(name for name in OTHERS if name in named),
    ]
