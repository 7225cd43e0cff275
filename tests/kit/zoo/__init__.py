"""Real mlx-lm model classes at very small sizes, with weights drawn from a seed."""

import mlx.nn as nn
from mlx_lm.models.cache import CacheList, make_prompt_cache

from . import dense, latent, lists, recurrent, windowed  # noqa: F401  (they register)
from .family import Family
from .registry import FAMILIES

__all__ = ["FAMILIES", "Family", "build", "describe"]


def build(name: str, seed: int = 0) -> nn.Module:
    """A new model of the family; the same seed gives the same weights in every process."""
    return FAMILIES[name].build(seed)


def _label(cache: object) -> str:
    if isinstance(cache, CacheList):
        return f"CacheList({', '.join(_label(child) for child in cache.caches)})"
    return type(cache).__name__


def describe(name: str) -> list[str]:
    """Class names of the family's prompt cache, in order; a list shows its children."""
    return [_label(cache) for cache in make_prompt_cache(build(name))]
