"""The constants of TurboQuant-MSE: codebook, signs and dense rotation (NumPy only, cached).

They follow the dialect of mlx-vlm 0.4.4 and later bit for bit, including its float32 arithmetic
and its early stop, because stored indices mean nothing without the same tables. Their digests are
part of the codec's identity. Source of the algorithm: arXiv 2504.19874.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .identity import table_digest

Table = npt.NDArray[np.float32]

_GRID_POINTS = 32768
_MAX_ROUNDS = 100
_TOLERANCE = 1e-6
_SEED_STRIDE = 7919


def is_power_of_two(dim: int) -> bool:
    """Say whether the Hadamard transform may be used: others corrupt the heap on MLX's CPU."""
    return dim > 0 and dim & (dim - 1) == 0


@lru_cache(maxsize=64)
def codebook(dim: int, bits: int) -> Table:
    """Return the 2**bits levels, ascending, for one coordinate of a random unit vector.

    Lloyd-Max iteration on a grid over [-1, 1], weighted by the coordinate's density. It stops
    after 100 rounds, unconverged at 4 bits; running on would give a different dialect.
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
    """Return the decision boundaries between neighbouring levels, in float32."""
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
    """Return the random orthogonal matrix for a dim that is no power of two, (dim, dim).

    The last bits depend on the LAPACK in use, so its digest may differ between machines.
    """
    rng = np.random.default_rng(seed + _SEED_STRIDE * dim)
    factor, triangle = np.linalg.qr(rng.standard_normal((dim, dim), dtype=np.float32))
    factor *= np.sign(np.diag(triangle))
    matrix: Table = factor.astype(np.float32)
    matrix.flags.writeable = False
    return matrix


@lru_cache(maxsize=64)
def digests(dim: int, bits: int, seed: int) -> dict[str, str]:
    """Return the digests of the tables that a codec of these parameters uses."""
    mixing = (
        {"signs": table_digest(signs(dim, seed).tobytes())}
        if is_power_of_two(dim)
        else {"rotation": table_digest(rotation(dim, seed).tobytes())}
    )
    return {"codebook": table_digest(codebook(dim, bits).tobytes()), **mixing}


def _density(grid: Table, dim: int) -> Table:
    """Weights proportional to (1 - t^2)^((dim - 3) / 2), summing to one in float32.

    The normalising constant cancels, but dropping it would change the rounding.
    """
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
