"""The constants of TurboQuant-MSE, and the rounding of coordinates to a codebook's levels.

They follow the dialect of mlx-vlm 0.4.4 and later bit for bit, including its float32 arithmetic and
its early stop: stored indices mean nothing without the same tables, whose digests are part of the
codec's identity. Source of the algorithm: arXiv 2504.19874.
"""

from __future__ import annotations

import math
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float32]

_GRID_POINTS = 32768
_MAX_ROUNDS = 100
_TOLERANCE = 1e-6
_SEED_STRIDE = 7919

_SLOTS = 256
"""All values of a byte: even the slot of a NaN stays inside the tables."""
_NARROWEST = 1e-6
_FEW = 7
"""Up to so many boundaries are counted faster than looked up."""


def is_power_of_two(dim: int) -> bool:
    """Say whether the Hadamard transform may be used: others corrupt the heap on MLX's CPU."""
    return dim > 0 and dim & (dim - 1) == 0


@lru_cache(maxsize=64)
def codebook(dim: int, bits: int) -> Table:
    """Return the 2**bits levels, ascending, for one coordinate of a random unit vector.

    Lloyd-Max iteration on a grid over [-1, 1], weighted by the coordinate's density. It stops after
    100 rounds, unconverged at 4 bits; running on would give a different dialect.
    """
    grid = np.linspace(-1.0 + 1e-6, 1.0 - 1e-6, _GRID_POINTS, dtype=np.float32)
    weights = _density(grid, dim)
    moments = weights * grid
    levels = 1 << bits
    quantiles = (np.arange(levels, dtype=np.float32) + 0.5) / levels
    centres = np.interp(quantiles, np.cumsum(weights), grid).astype(np.float32)
    for _ in range(_MAX_ROUNDS):
        edges = np.searchsorted(grid, np.float32(0.5) * (centres[:-1] + centres[1:]))
        moved = _centroids(centres, weights, moments, [0, *edges.tolist(), _GRID_POINTS])
        shift = np.max(np.abs(moved - centres))
        centres = moved
        if shift < _TOLERANCE:
            break
    centres.flags.writeable = False
    return centres


def midpoints(levels: Table) -> Table:
    halves: Table = ((levels[:-1] + levels[1:]) / np.float32(2)).astype(np.float32)
    return halves


@lru_cache(maxsize=64)
def signs(dim: int, seed: int) -> Table:
    """Return the +1/-1 diagonal in front of the Hadamard transform, shape (dim,)."""
    rng = np.random.default_rng(seed + _SEED_STRIDE * dim)
    drawn: Table = rng.choice([-1.0, 1.0], size=dim).astype(np.float32)
    drawn.flags.writeable = False
    return drawn


@lru_cache(maxsize=16)
def rotation(dim: int, seed: int) -> Table:
    """Return the random orthogonal matrix for a dim that is no power of two. Its last bits depend
    on the LAPACK in use, so its digest may differ between machines."""
    rng = np.random.default_rng(seed + _SEED_STRIDE * dim)
    factor, triangle = np.linalg.qr(rng.standard_normal((dim, dim), dtype=np.float32))
    factor *= np.sign(np.diag(triangle))
    matrix: Table = factor.astype(np.float32)
    matrix.flags.writeable = False
    return matrix


def mixing(dim: int, seed: int) -> Table:
    return signs(dim, seed) if is_power_of_two(dim) else rotation(dim, seed)


@lru_cache(maxsize=64)
def digests(dim: int, bits: int, seed: int) -> dict[str, str]:
    mixed = "signs" if is_power_of_two(dim) else "rotation"
    found = {"codebook": codebook(dim, bits), mixed: mixing(dim, seed)}
    return {name: sha256(table.tobytes()).hexdigest()[:16] for name, table in found.items()}


def _density(grid: Table, dim: int) -> Table:
    """Weights proportional to (1 - t^2)^((dim - 3) / 2), summing to one in float32. The normalising
    constant cancels, but dropping it would change the rounding."""
    constant = math.lgamma(dim / 2) - 0.5 * math.log(math.pi) - math.lgamma((dim - 1) / 2)
    logs = constant + ((dim - 3) / 2) * np.log(np.clip(1.0 - grid**2, 1e-30, None))
    unscaled = np.exp(logs - np.max(logs))
    weights: Table = unscaled / unscaled.sum()
    return weights


def _centroids(centres: Table, weights: Table, moments: Table, edges: list[int]) -> Table:
    """Return the weighted mean of each cell; a cell without weight keeps its centre."""
    moved = centres.copy()
    for index in range(len(centres)):
        cell = slice(edges[index], edges[index + 1])
        total = weights[cell].sum()
        if total > 0:
            moved[index] = np.sum(moments[cell]) / total
    return moved


class _Slots(NamedTuple):
    below: mx.array
    boundary: mx.array
    scale: float
    shift: float


class Rounder:
    """Maps a float32 coordinate to the number of boundaries that are smaller, lazily; immutable.

    A search would branch, and comparing with each of fifteen boundaries takes thirty kernels on a
    GPU, which fused take half a minute to compile on CUDA. So the range is cut into 256 equal
    slots, each with one boundary at most. The slot says how many boundaries lie below it, and one
    comparison decides about its own. Scaling is monotone in float32, so it is exact.
    """

    def __init__(self, boundaries: Table) -> None:
        self._boundaries = [float(value) for value in boundaries]
        self._slots = _slots(boundaries) if len(boundaries) > _FEW else None

    def __call__(self, x: mx.array) -> mx.array:
        """Return uint8 indices of the shape of `x`; NaN gives any index."""
        if self._slots is None:
            smaller = (x > self._boundaries[0]).astype(mx.uint8)
            for boundary in self._boundaries[1:]:
                smaller = smaller + (x > boundary)
            return smaller
        below, edges, scale, shift = self._slots
        slot = mx.clip(x * scale + shift, 0, _SLOTS - 1).astype(mx.uint8)
        return gather(below, slot) + (x > gather(edges, slot))


def gather(table: mx.array, index: mx.array) -> mx.array:
    """Return `table[index]`; `take_along_axis` is five times as fast as `take` on MLX's CPU."""
    return mx.take_along_axis(table, index.reshape(-1), axis=0).reshape(index.shape)


def _slots(boundaries: Table) -> _Slots | None:
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


class Tables(NamedTuple):
    """The constants as evaluated arrays, which any thread may read, and the rounding to them.

    `mixing` is the sign vector of the Hadamard rotation, or the matrix of a dense one.
    """

    mixing: mx.array
    edges: mx.array
    levels: mx.array
    nearest: Rounder


@lru_cache(maxsize=64)
def tables(dim: int, bits: int, seed: int) -> Tables:
    levels = codebook(dim, bits)
    edges = midpoints(levels)
    return Tables(mx.array(mixing(dim, seed)), mx.array(edges), mx.array(levels), Rounder(edges))
