"""RotatingKVCache: the first `keep` and the last tokens of one layer, in a fixed window; and its
batches, as one becomes the other by `merge` and `extract`."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as upstream

from .buffers import Array, Pair, own_step, owned
from .windows import BatchWindows, PinnedWindows, Windowed, fill


class RotatingKVCache(Windowed, upstream.RotatingKVCache):  # type: ignore[misc]
    """Drop-in for mlx-lm's RotatingKVCache; with no option set, the same arrays and state.

    capacity: columns to allocate on first use, at most `max_size`. A multi-token update then leaves
    `max_size` columns behind, not max_size - 1 + n, and below the window it writes in place. step:
    the growth increment in tokens below the window, instead of 256.

    `update_and_fetch` returns upstream's arrays bit for bit and column for column, and upstream's
    class continues from `state`. Unlike upstream's, `trim` refuses (returns 0) once the window has
    wrapped, and copies are independent.
    """

    offset: int

    def __init__(
        self,
        max_size: int,
        keep: int = 0,
        step: int | None = None,
        *,
        capacity: int | None = None,
    ) -> None:
        super().__init__(max_size, keep)
        self._set_options(step, capacity)

    @classmethod
    def merge(cls, caches: Any) -> Any:
        return merge(caches)

    def _update_in_place(self, keys: Array, values: Array) -> Pair:
        if self.capacity is not None:
            self._reserve(self.offset + 1, self._idx, keys, values)
        return super()._update_in_place(keys, values)

    def _update_concat(self, keys: Array, values: Array) -> Pair:
        if self.capacity is None:
            return super()._update_concat(keys, values)
        start, end = self.offset, self.offset + keys.shape[2]
        if end > self.max_size:
            return self._write_through_window(keys, values)
        self._reserve(end, self._idx, keys, values)
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        self.offset = self._idx = end
        return self.keys_and_values()

    def _write_through_window(self, keys: Array, values: Array) -> Pair:
        """Attend over the window and the chunk, and retain a copy of the window only. The chunk's
        first query sees max_size - 1 older tokens and its last query the whole chunk, so a joined
        array of both is needed, which is freed with this layer's attention."""
        joined_keys = _join([*self._window(self.keys), keys])
        joined_values = _join([*self._window(self.values), values])
        self.keys = self._retained(joined_keys)
        self.values = self._retained(joined_values)
        self.offset += keys.shape[2]
        self._idx = self.max_size
        return joined_keys, joined_values

    def _window(self, buffer: Array | None) -> list[Array]:
        """Return views of the tokens that a new chunk may see, oldest first."""
        if buffer is None or self.offset == 0:
            return []
        columns = buffer.shape[2]
        keep = min(self.keep, self._idx)
        parts = [(0, keep), (keep, self._idx)]
        if self._idx != columns and self._idx < self.offset:
            parts.insert(1, (self._idx, columns))
        # Of the columns that are not pinned the oldest are evicted.
        evicted = max(0, sum(stop - start for start, stop in parts) - (self.max_size - 1))
        views = []
        for place, (start, stop) in enumerate(parts):
            cut = min(evicted, stop - start) if place else 0
            evicted -= cut
            if start + cut < stop:
                views.append(buffer[..., start + cut : stop, :])
        return views

    def _retained(self, joined: Array) -> Array:
        if self.keep == 0:
            return owned(joined[..., -self.max_size :, :])
        recent = joined[..., joined.shape[2] - (self.max_size - self.keep) :, :]
        return _join([joined[..., : self.keep, :], recent])


class BatchRotatingKVCache(BatchWindows):
    """Drop-in for mlx-lm's BatchRotatingKVCache; with no option set, the same arrays and state.
    capacity and step are RotatingKVCache's; `merge` takes them from the first cache."""

    @classmethod
    def merge(cls, caches: Any) -> Any:
        return merge(caches)

    def new_row(self) -> RotatingKVCache:
        return RotatingKVCache(self.max_size, self.keep, own_step(self), capacity=self.capacity)


class PinnedBatchRotatingKVCache(PinnedWindows, BatchRotatingKVCache):
    """A BatchRotatingKVCache with `keep`; what a row attends to equals its own RotatingKVCache."""


def _join(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else mx.concatenate(list(parts), axis=2)


def merge(caches: Sequence[Any]) -> BatchRotatingKVCache:
    """Return one batch cache with a copy of every rotating cache, `keep` and room included; lazy.
    Raises ValueError when the caches differ in `max_size` or `keep`."""
    first = caches[0]
    if any((c.max_size, c.keep) != (first.max_size, first.keep) for c in caches):
        raise ValueError(
            "only rotating caches of the same max_size and keep can be merged, got "
            f"{sorted({(c.max_size, c.keep) for c in caches})}"
        )
    step, capacity = own_step(first), getattr(first, "capacity", None)
    if first.keep:
        pinned = PinnedBatchRotatingKVCache(
            first.max_size, [0] * len(caches), step, capacity=capacity, keep=first.keep
        )
        fill(pinned, caches)
        return pinned
    merged: BatchRotatingKVCache = upstream.BatchRotatingKVCache.merge.__func__(
        BatchRotatingKVCache, caches
    )
    if step is not None:
        merged.step = step
    merged.capacity = capacity
    return merged
