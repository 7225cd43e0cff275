"""PinnedWindows: a batch of rotating windows whose first tokens stay.

Every row is laid out as RotatingKVCache lays out one sequence: the token at position p
is in column p while p < max_size, then in column keep + (p - keep) % (max_size - keep).
Rows are aligned at the front and have their own write position, so there is no padding
to move, and what a row retains does not depend on the others. Counts are host integers:
nothing here waits for the device.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from . import ring
from .batch_rotating import BatchWindows
from .buffers import Array, owned, regrow, room, shared


class PinnedWindows(BatchWindows):
    """BatchWindows with `keep`; what a row attends to equals its own RotatingKVCache.

    Mutable: the buffers, `_counts` (tokens per row; negative while left padding is still
    to come) and `_ends` (where each row's right-padded prompt ends, until `finalize`).
    """

    def __init__(
        self,
        max_size: int,
        left_padding: Sequence[int],
        step: int | None = None,
        *,
        capacity: int | None = None,
        keep: int,
    ) -> None:
        if not 0 <= keep < max_size:
            raise ValueError(f"keep must be below max_size {max_size}, got {keep}")
        self._counts: list[int] = []
        self._ends: list[int] | None = None
        super().__init__(max_size, left_padding, step, capacity=capacity)
        self.keep = keep
        self._counts = [-padding for padding in left_padding]

    @property
    def offset(self) -> Array:
        """Tokens per row as an array (B,): what rotary embeddings need."""
        return mx.array(self._counts)

    @offset.setter
    def offset(self, value: Array) -> None:
        """Upstream's constructor assigns it; the counts are what holds."""

    @property
    def state(self) -> tuple[Any, ...]:
        """The buffers and this layout's scalars; not upstream's tuple."""
        return self.keys, self.values, list(self._counts), self.keep, self.max_size

    @state.setter
    def state(self, state: Any) -> None:
        self._ends = None
        self.keys, self.values, self._counts, self.keep, self.max_size = shared(state)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append n tokens per row, less its padding; return what the chunk attends to; lazy."""
        length = keys.shape[2]
        ends = self._ends_after(length)
        held = self.size()
        seen = [] if self.keys is None else [self.keys[..., :held, :]]
        seen_values = [] if self.values is None else [self.values[..., :held, :]]
        self._reserve(min(max(*ends, 1), self.max_size), keys, values)
        # A row in padding has nothing to write, and its newest column is not free.
        if length == 1 and all(
            0 < end == count + 1 for end, count in zip(ends, self._counts, strict=True)
        ):
            self._write_one(ends, keys, values)
        else:
            self._write_chunk(ends, keys, values)
        self._counts = ends
        if length == 1:
            return self.keys_and_values()
        joined = mx.concatenate([*seen, keys], axis=2), mx.concatenate([*seen_values, values], 2)
        return joined

    def keys_and_values(self) -> tuple[Array, Array]:
        held = self.size()
        return self.keys[..., :held, :], self.values[..., :held, :]

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> Array:
        """Return the boolean mask (B, 1, N, columns) of what the next `N` tokens see."""
        window = window_size or self.max_size
        layout = ring.RingLayout(self.max_size, self.keep)
        if N == 1:
            ends = self._ends_after(1)
            visible = ring.decode_mask(layout, ends, self._size_of(ends), window)
        else:
            visible = ring.chunk_mask(layout, self._counts, self.size(), N, window)
        return mx.array(visible[:, None])

    def prepare(
        self, *, left_padding: Any = None, lengths: Any = None, right_padding: Any = None
    ) -> None:
        """Announce padding: on the left of an empty cache, or on the right of what comes."""
        if left_padding is not None:
            if self.keys is not None:
                raise ValueError("left padding can only be added to an empty cache")
            pairs = zip(self._counts, left_padding, strict=True)
            self._counts = [count - int(padding) for count, padding in pairs]
        if right_padding is not None and max(right_padding) > 0:
            pairs = zip(self._counts, lengths, strict=True)
            self._ends = [count + int(length) for count, length in pairs]

    def finalize(self) -> None:
        """Forget the announced padding: padded tokens were never written."""
        self._ends = None

    def is_trimmable(self) -> bool:
        return bool(max(self._counts, default=0) < self.max_size)

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens of every row; return how many, 0 once a row wrapped."""
        if not self.is_trimmable():
            return 0
        n = max(0, min(n, max(self._counts, default=0)))
        self._counts = [count - n for count in self._counts]
        return n

    def size(self) -> int:
        return self._size_of(self._counts)

    def filter(self, batch_indices: Any) -> None:
        """Keep the given rows, in the given order."""
        rows = [int(row) for row in np.asarray(batch_indices).tolist()]
        if self.keys is not None:
            self.keys, self.values = self.keys[mx.array(rows)], self.values[mx.array(rows)]
        self._counts = [self._counts[row] for row in rows]

    def extend(self, other: "PinnedWindows") -> None:
        """Add the other cache's rows behind this one's."""
        like = self if self.keys is not None else other
        if like.keys is not None:
            columns = max(c.keys.shape[2] for c in (self, other) if c.keys is not None)
            parts = [c._widened(columns, like) for c in (self, other)]
            self.keys = mx.concatenate([keys for keys, _ in parts])
            self.values = mx.concatenate([values for _, values in parts])
        self._counts = [*self._counts, *other._counts]

    def extract(self, idx: int) -> Any:
        """Return row `idx` as an owned RotatingKVCache with this cache's `keep`; lazy."""
        row = self.new_row()
        count = max(0, self._counts[idx])
        if self.keys is not None and count:
            held = min(count, self.max_size)
            row.keys = owned(self.keys[idx : idx + 1, :, :held])
            row.values = owned(self.values[idx : idx + 1, :, :held])
            row.offset = count
            row._idx = ring.RingLayout(self.max_size, self.keep).write_index(count)
        return row

    def _ends_after(self, length: int) -> list[int]:
        ends = [count + length for count in self._counts]
        if self._ends is None:
            return ends
        pairs = zip(ends, self._ends, self._counts, strict=True)
        return [max(count, min(end, limit)) for end, limit, count in pairs]

    def _size_of(self, counts: Sequence[int]) -> int:
        return int(max(0, min(max(counts, default=0), self.max_size)))

    def _reserve(self, needed: int, keys: Array, values: Array) -> None:
        columns = 0 if self.keys is None else self.keys.shape[2]
        if needed <= columns:
            return
        grown = max(min(needed + self.step - 1, self.max_size), self.capacity or 0)
        if self.capacity is not None and needed <= self.capacity:
            grown = self.capacity
        self.keys = regrow(self.keys, columns, grown, like=keys)
        self.values = regrow(self.values, columns, grown, like=values)

    def _write_one(self, ends: Sequence[int], keys: Array, values: Array) -> None:
        layout = ring.RingLayout(self.max_size, self.keep)
        columns = [layout.column(end - 1) for end in ends]
        if len(set(columns)) == 1:
            self.keys[..., columns[0] : columns[0] + 1, :] = keys
            self.values[..., columns[0] : columns[0] + 1, :] = values
            return
        rows, where = mx.arange(len(columns)), mx.array(columns)
        self.keys[rows, :, where] = keys[:, :, 0]
        self.values[rows, :, where] = values[:, :, 0]

    def _write_chunk(self, ends: Sequence[int], keys: Array, values: Array) -> None:
        layout = ring.RingLayout(self.max_size, self.keep)
        writes = ring.chunk_writes(layout, self._counts, ends)
        if not writes.rows:
            return
        rows, columns, tokens = map(mx.array, writes)
        self.keys[rows, :, columns] = keys[rows, :, tokens]
        self.values[rows, :, columns] = values[rows, :, tokens]

    def _widened(self, columns: int, like: Any) -> tuple[Array, Array]:
        if self.keys is None:
            batch = len(self._counts)
            return (
                room(mx.broadcast_to(like.keys[:1], (batch, *like.keys.shape[1:])), columns),
                room(mx.broadcast_to(like.values[:1], (batch, *like.values.shape[1:])), columns),
            )
        held = self.keys.shape[2]
        if held == columns:
            return self.keys, self.values
        return (
            regrow(self.keys, held, columns, like=self.keys),
            regrow(self.values, held, columns, like=self.values),
        )


def fill(merged: PinnedWindows, caches: Sequence[Any]) -> None:
    """Copy rotating caches of the same max_size and keep into the rows of a new batch cache."""
    counts = [c.offset for c in caches]
    filled = [c for c in caches if c.keys is not None and c.offset > 0]
    if not filled:
        return
    layout = ring.RingLayout(merged.max_size, merged.keep)
    columns = max(min(max(counts), merged.max_size), merged.capacity or 0)
    heads, key_dim = filled[0].keys.shape[1], filled[0].keys.shape[3]
    value_dim, dtype = filled[0].values.shape[3], filled[0].keys.dtype
    merged.keys = mx.zeros((len(caches), heads, columns, key_dim), dtype)
    merged.values = mx.zeros((len(caches), heads, columns, value_dim), dtype)
    for row, cache in enumerate(caches):
        if cache.keys is None or cache.offset == 0:
            continue
        held = min(cache.offset, merged.max_size)
        for target, source in ((merged.keys, cache.keys), (merged.values, cache.values)):
            laid_out = ring.laid_out(layout, cache._temporal_order(source), cache.offset)
            target[row : row + 1, :, :held] = laid_out
    merged._counts = counts
