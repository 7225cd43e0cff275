"""Real mlx-lm model classes at very small sizes, with weights drawn from a seed."""

import mlx.nn as nn

from . import dense, latent, recurrent, windowed  # noqa: F401  (they register)
from .family import FAMILIES, Family

__all__ = ["FAMILIES", "Family", "build"]


def build(name: str, seed: int = 0) -> nn.Module:
    """A new model of the family; the same seed gives the same weights in every process."""
    return FAMILIES[name].build(seed)
