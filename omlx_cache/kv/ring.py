"""Where the tokens of a window with kept first tokens lie, and who sees whom.

Host arithmetic (NumPy) for `pinned`; only `laid_out` touches MLX, lazily.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from .buffers import Array

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Columns 0..keep-1 hold the first tokens for good; the others are a ring."""

    max_size: int
    keep: int

    @property
    def ring(self) -> int:
        return self.max_size - self.keep

    def column(self, position: int) -> int:
        if position < self.max_size:
            return position
        return self.keep + (position - self.keep) % self.ring

    def write_index(self, count: int) -> int:
        """Return RotatingKVCache's `_idx` after `count` tokens: max_size stands for keep."""
        if count <= self.max_size:
            return count
        column = self.column(count)
        return self.max_size if column == self.keep else column

    def positions(self, count: int, columns: int) -> npt.NDArray[np.int64]:
        """Return the position of the token in each column, -1 where there is none."""
        column = np.arange(columns)
        if count <= self.max_size:
            return np.where(column < count, column, -1)
        last = count - 1
        ring = last - (self.column(last) - column) % self.ring
        return np.where(column < self.keep, column, ring)


class Writes(NamedTuple):
    """Parallel lists: token `tokens[i]` of the chunk's row goes to `columns[i]`."""

    rows: list[int]
    columns: list[int]
    tokens: list[int]


def chunk_writes(layout: RingLayout, counts: Sequence[int], ends: Sequence[int]) -> Writes:
    """Return the tokens of a chunk that the window retains; no column is written twice."""
    writes = Writes([], [], [])
    for row, (count, end) in enumerate(zip(counts, ends, strict=True)):
        recent = end - layout.ring if end > layout.max_size else 0
        start = max(count, 0)
        first = range(start, min(layout.keep, end))
        for position in [*first, *range(max(start, recent, first.stop), end)]:
            writes.rows.append(row)
            writes.columns.append(layout.column(position))
            writes.tokens.append(position - count)
    return writes


def decode_mask(layout: RingLayout, ends: Sequence[int], columns: int, window: int) -> Mask:
    """Return (B, 1, columns): what each row's newest token sees, itself included."""
    rows = []
    for end in ends:
        positions = layout.positions(end, columns)
        seen = positions >= 0
        if window < layout.max_size:
            seen &= positions > end - 1 - window
        rows.append(seen[None])
    return np.stack(rows)


def chunk_mask(
    layout: RingLayout, counts: Sequence[int], columns: int, length: int, window: int
) -> Mask:
    """Return (B, length, columns + length): what the tokens of a chunk see.

    RotatingKVCache masks by the index in temporal order after eviction, kept tokens
    included; the same indices are computed here for tokens in ring order.
    """
    rows = []
    for count in counts:
        evicted = max(0, count - (layout.max_size - 1))
        positions = layout.positions(max(count, 0), columns)
        held = (positions >= 0) & ((positions < layout.keep) | (positions >= layout.keep + evicted))
        old = np.where(positions < layout.keep, positions, positions - evicted)
        new = count - evicted + np.arange(length)
        index = np.concatenate([old, new])
        valid = np.concatenate([held, count + np.arange(length) >= 0])
        query = new[:, None]
        rows.append(valid & (index <= query) & (index > query - window))
    return np.stack(rows)


def laid_out(layout: RingLayout, temporal: Array, count: int) -> Array:
    """Return a sequence's window, given oldest first, in this layout's columns."""
    if count <= layout.max_size:
        return temporal[..., :count, :]
    recent = temporal[..., temporal.shape[2] - layout.ring :, :]
    recent = mx.roll(recent, (count - layout.keep) % layout.ring, 2)
    return mx.concatenate([temporal[..., : layout.keep, :], recent], axis=2)
