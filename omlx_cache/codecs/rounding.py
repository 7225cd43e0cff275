"""Rounding coordinates to the nearest of a few sorted levels; lazy MLX operations.

A search would branch, and comparing with each of fifteen boundaries takes thirty kernels on a GPU
(fused into one they take half a minute to compile on CUDA). So the range is cut into 256 equal
slots, narrow enough to hold one boundary at most: the slot says how many boundaries lie below it,
and one comparison decides the rest. Scaling is monotone in float32, so the result is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Boundaries = npt.NDArray[np.float32]

_SLOTS = 256
"""All values of a byte: even the slot of a NaN stays inside the tables."""

_NARROWEST = 1e-6
_FEW = 7
"""Up to so many boundaries are counted faster than looked up."""


class _Slots(NamedTuple):
    below: mx.array
    boundary: mx.array
    scale: float
    shift: float


class Rounder:
    """Maps a float32 coordinate to the number of boundaries that are smaller; immutable."""

    def __init__(self, boundaries: Boundaries) -> None:
        self._boundaries = [float(value) for value in boundaries]
        self._slots = _slots(boundaries) if len(boundaries) > _FEW else None

    def __call__(self, x: mx.array) -> mx.array:
        """Return uint8 indices of the shape of `x`; NaN gives any index."""
        return self._count(x) if self._slots is None else _look_up(x, self._slots)

    def _count(self, x: mx.array) -> mx.array:
        smaller = (x > self._boundaries[0]).astype(mx.uint8)
        for boundary in self._boundaries[1:]:
            smaller = smaller + (x > boundary)
        return smaller


def gather(table: mx.array, index: mx.array) -> mx.array:
    """Return `table[index]`; `take_along_axis` is five times as fast as `take` on MLX's CPU."""
    return mx.take_along_axis(table, index.reshape(-1), axis=0).reshape(index.shape)


def _look_up(x: mx.array, slots: _Slots) -> mx.array:
    slot = mx.clip(x * slots.scale + slots.shift, 0, _SLOTS - 1).astype(mx.uint8)
    return gather(slots.below, slot) + (x > gather(slots.boundary, slot))


def _slots(boundaries: Boundaries) -> _Slots | None:
    """Return the tables, or None where two boundaries fall into one slot."""
    width = boundaries[-1] - boundaries[0]
    if width < _NARROWEST:
        return None
    scale = np.float32((_SLOTS - 2) / width)
    shift = np.float32(np.float32(1) - boundaries[0] * scale)
    places = np.clip(boundaries * scale + shift, 0, _SLOTS - 1).astype(np.uint8)
    if len(set(places.tolist())) < len(boundaries):
        return None
    below = np.searchsorted(places, np.arange(_SLOTS)).astype(np.uint8)
    boundary = np.full(_SLOTS, np.inf, np.float32)
    boundary[places] = boundaries
    return _Slots(mx.array(below), mx.array(boundary), float(scale), float(shift))
