"""The common part of a window and its batches, and the windows of several sequences in one buffer.

`BatchWindows` are laid out as upstream does: columns are shared by all rows, padding is on the
left, and no first tokens stay. `PinnedWindows` are for those: every row is laid out as
RotatingKVCache lays out one sequence, the token at position p in column p while p < max_size, then
in column keep + (p - keep) % (max_size - keep). Rows are aligned at the front and have their own
write position: there is no padding to move, and a row's tokens do not depend on the others. Counts,
places and masks are host arithmetic: nothing here waits for the device.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models import cache as upstream

from .buffers import Array, Independent, Pair, owned, positive, regrow, shared

Mask = npt.NDArray[np.bool_]


class Windowed(Independent):
    """Mixin: room that is made once, and a trim that refuses once older tokens were overwritten."""

    capacity: int | None = None

    keys: Any
    values: Any
    max_size: int
    _idx: int

    def _set_options(self, step: int | None, capacity: int | None) -> None:
        if step is not None:
            self.step = positive("step", step)
        if capacity is not None:
            self.capacity = min(positive("capacity", capacity), self.max_size)

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens; return how many, 0 once older ones were overwritten."""
        return int(super().trim(n)) if self.is_trimmable() else 0

    def _reserve(self, needed: int, used: int, keys: Array, values: Array) -> None:
        columns = 0 if self.keys is None else self.keys.shape[2]
        if columns < min(needed, self.max_size):
            room = self.capacity or 0
            if needed > room:
                room = min(needed + self.step - 1, self.max_size)
            self.keys = regrow(self.keys, used, room, like=keys)
            self.values = regrow(self.values, used, room, like=values)


class BatchWindows(Windowed, upstream.BatchRotatingKVCache):  # type: ignore[misc]
    """mlx-lm's BatchRotatingKVCache with room and without its waste; `rotating` makes it whole."""

    keep = 0
    _lengths: Any = None

    def __init__(
        self,
        max_size: int,
        left_padding: Sequence[int],
        step: int | None = None,
        *,
        capacity: int | None = None,
    ) -> None:
        super().__init__(max_size, list(left_padding))
        self._set_options(step, capacity)

    @abstractmethod
    def new_row(self) -> Any:
        """Return an empty cache for one row, with this cache's options."""

    def extract(self, idx: int) -> Any:
        """Return row `idx` as an owned RotatingKVCache; evaluates the paddings."""
        row = self.new_row()
        alone = super().extract(idx)
        row.keys, row.values = alone.keys, alone.values
        row.offset, row._idx = alone.offset, alone._idx
        return row

    def finalize(self) -> None:
        """Move right padding to the front, then free the columns that exceed the window."""
        super().finalize()
        self._give_back_surplus()

    def _update_in_place(self, keys: Array, values: Array) -> Pair:
        if self.capacity is not None:
            self._reserve(self._offset + 1, self._idx, keys, values)
        return super()._update_in_place(keys, values)

    def _update_concat(self, keys: Array, values: Array) -> Pair:
        joined = super()._update_concat(keys, values)
        # Before finalize() right padding still counts as tokens: dropping now would drop real ones.
        if self._lengths is None:
            self._give_back_surplus()
        return joined

    def _give_back_surplus(self) -> None:
        """Retain the window only, as upstream does at the next single-token update."""
        if self.capacity is None or self.keys is None:
            return
        surplus = self.keys.shape[2] - self.max_size
        if surplus > 0:
            self.keys = owned(self.keys[..., surplus:, :])
            self.values = owned(self.values[..., surplus:, :])
            self.left_padding -= surplus
            self._idx = self.max_size


class PinnedWindows(BatchWindows):
    """BatchWindows with `keep`; what a row attends to equals its own RotatingKVCache.

    Mutable: the buffers, `_counts` (tokens per row; negative while left padding is still to come)
    and `_ends` (where each row's right-padded prompt ends, until `finalize`).
    """

    _counts: list[int]
    _ends: list[int] | None = None

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

    def update_and_fetch(self, keys: Array, values: Array) -> Pair:
        """Append n tokens per row, less its padding; return the keys and values that the chunk
        attends to; lazy."""
        length = keys.shape[2]
        ends = self._ends_after(length)
        before = None if self.keys is None else self.keys_and_values()
        columns = 0 if self.keys is None else self.keys.shape[2]
        self._reserve(max(*ends, 1), columns, keys, values)
        self._write(ends, keys, values)
        self._counts = ends
        if length == 1:
            return self.keys_and_values()
        if before is None:
            return keys, values
        return tuple(
            mx.concatenate([old, new], axis=2)
            for old, new in zip(before, (keys, values), strict=True)
        )

    def keys_and_values(self) -> Pair:
        held = self.size()
        return self.keys[..., :held, :], self.values[..., :held, :]

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> Array:
        """Return the boolean mask (B, 1, N, columns) of what the next `N` tokens see."""
        window = window_size or self.max_size
        if N == 1:
            ends = self._ends_after(1)
            visible = self._decode_mask(ends, self._size_of(ends), window)
        else:
            visible = self._chunk_mask(N, window)
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
        rows = [int(row) for row in np.asarray(batch_indices).tolist()]
        if self.keys is not None:
            self.keys, self.values = self.keys[mx.array(rows)], self.values[mx.array(rows)]
        self._counts = [self._counts[row] for row in rows]

    def extend(self, other: "PinnedWindows") -> None:
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
            row._idx = self._write_index(count)
        return row

    @property
    def _ring(self) -> int:
        return self.max_size - self.keep

    def _column(self, position: int) -> int:
        if position < self.max_size:
            return position
        return self.keep + (position - self.keep) % self._ring

    def _write_index(self, count: int) -> int:
        """Return RotatingKVCache's `_idx` after `count` tokens: max_size stands for keep."""
        if count <= self.max_size:
            return count
        column = self._column(count)
        return self.max_size if column == self.keep else column

    def _positions(self, count: int, columns: int) -> npt.NDArray[np.int64]:
        """Return the position of the token in each column, -1 where there is none."""
        column = np.arange(columns)
        if count <= self.max_size:
            return np.where(column < count, column, -1)
        last = count - 1
        ring = last - (self._column(last) - column) % self._ring
        return np.where(column < self.keep, column, ring)

    def _writes(self, ends: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return (row, column, token) of the tokens of a chunk that the window retains; no column
        is written twice."""
        found = []
        for row, (count, end) in enumerate(zip(self._counts, ends, strict=True)):
            recent = end - self._ring if end > self.max_size else 0
            start = max(count, 0)
            first = range(start, min(self.keep, end))
            for position in [*first, *range(max(start, recent, first.stop), end)]:
                found.append((row, self._column(position), position - count))
        return found

    def _decode_mask(self, ends: Sequence[int], columns: int, window: int) -> Mask:
        positions = np.stack([self._positions(end, columns) for end in ends])[:, None]
        seen = positions >= 0
        if window < self.max_size:
            seen &= positions > np.array(ends)[:, None, None] - 1 - window
        return seen

    def _chunk_mask(self, length: int, window: int) -> Mask:
        """Return (B, length, held columns + length): the mask of a chunk's tokens.

        RotatingKVCache masks by the index in temporal order after eviction, kept tokens included;
        the same indices are computed here for tokens in ring order.
        """
        rows = []
        for count in self._counts:
            evicted = max(0, count - (self.max_size - 1))
            positions = self._positions(max(count, 0), self.size())
            kept = positions < self.keep
            held = (positions >= 0) & (kept | (positions >= self.keep + evicted))
            new = count - evicted + np.arange(length)
            index = np.concatenate([np.where(kept, positions, positions - evicted), new])
            valid = np.concatenate([held, count + np.arange(length) >= 0])
            query = new[:, None]
            rows.append(valid & (index <= query) & (index > query - window))
        return np.stack(rows)

    def laid_out(self, temporal: Array, count: int) -> Array:
        """Return a sequence's window, given oldest first, in this layout's columns; lazy."""
        if count <= self.max_size:
            return temporal[..., :count, :]
        recent = temporal[..., temporal.shape[2] - self._ring :, :]
        recent = mx.roll(recent, (count - self.keep) % self._ring, 2)
        return mx.concatenate([temporal[..., : self.keep, :], recent], axis=2)

    def _ends_after(self, length: int) -> list[int]:
        ends = [count + length for count in self._counts]
        if self._ends is None:
            return ends
        pairs = zip(ends, self._ends, self._counts, strict=True)
        return [max(count, min(end, limit)) for end, limit, count in pairs]

    def _size_of(self, counts: Sequence[int]) -> int:
        return int(max(0, min(max(counts, default=0), self.max_size)))

    def _write(self, ends: Sequence[int], keys: Array, values: Array) -> None:
        writes = self._writes(ends)
        rows, columns, tokens = ([write[part] for write in writes] for part in range(3))
        if keys.shape[2] == 1 and len(rows) == len(ends) and len(set(columns)) == 1:
            self.keys[..., columns[0] : columns[0] + 1, :] = keys
            self.values[..., columns[0] : columns[0] + 1, :] = values
        elif writes:
            # A row in padding has nothing to write, and its newest column is not free.
            to, of, at = mx.array(rows), mx.array(columns), mx.array(tokens)
            self.keys[to, :, of] = keys[to, :, at]
            self.values[to, :, of] = values[to, :, at]

    def _widened(self, columns: int, like: Any) -> Pair:
        if self.keys is None:
            sides = (like.keys, like.values)
            shapes = [(len(self._counts), s.shape[1], columns, s.shape[3]) for s in sides]
            return [mx.zeros(n, side.dtype) for n, side in zip(shapes, sides, strict=True)]
        behind = [(0, 0), (0, 0), (0, columns - self.keys.shape[2]), (0, 0)]
        return mx.pad(self.keys, behind), mx.pad(self.values, behind)


def fill(merged: PinnedWindows, caches: Sequence[Any]) -> None:
    filled = [c for c in caches if c.keys is not None and c.offset > 0]
    if not filled:
        return
    merged._counts = [c.offset for c in caches]
    columns = max(merged.size(), merged.capacity or 0)
    for name in ("keys", "values"):
        like = getattr(filled[0], name)
        side = mx.zeros((len(caches), like.shape[1], columns, like.shape[3]), like.dtype)
        for row, cache in enumerate(caches):
            if cache in filled:
                temporal = cache._temporal_order(getattr(cache, name))
                laid_out = merged.laid_out(temporal, cache.offset)
                side[row : row + 1, :, : laid_out.shape[2]] = laid_out
        setattr(merged, name, side)
