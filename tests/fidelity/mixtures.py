"""Which families keep the same mixture of caches, read off the caches that mlx-lm makes for them.

Families of one mixture take the same way through the store, so every run measures the smallest of
each, and the nightly run all of them.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from omlx_cache.adapters.registry import adapter_for, children, layout_name

NAMES = [name for name, family in zoo.FAMILIES.items() if not family.broken]

Mixture = frozenset[str]


class Kept(NamedTuple):
    """What a family keeps, and how much there is to compute: layers, then parameters."""

    mixture: Mixture
    size: tuple[int, int]


@cache
def _kept(name: str) -> Kept:
    family = zoo.FAMILIES[name]
    model = family.build(0)
    layers = make_prompt_cache(model)
    mixture = frozenset(f"{_described(layer)} of {family.dtype}" for layer in layers)
    parameters = sum(array.size for _, array in tree_flatten(model.parameters()))
    return Kept(mixture, (len(layers), parameters))


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
    return f"{layout_name(layer)} as {adapter_for(layer).group(layer).name}"


@cache
def representatives() -> tuple[str, ...]:
    """The smallest family of each mixture."""
    smallest: dict[Mixture, str] = {}
    for name in sorted(NAMES, key=lambda name: _kept(name).size):
        smallest.setdefault(mixture(name), name)
    return tuple(name for name in NAMES if name in smallest.values())


def others() -> tuple[str, ...]:
    """The families whose mixture another one stands for."""
    return tuple(name for name in NAMES if name not in representatives())


def nightly(values: Iterable[Any]) -> list[Any]:
    """Parameters that only the nightly run takes."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
