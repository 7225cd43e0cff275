"""RotatingKVCache: the first `keep` and the last tokens of one layer, in a fixed window.

And its batches: one becomes the other by `merge` and `extract`, so they stand together.
"""

from collections.abc import Sequence
from typing import Any

from mlx_lm.models import cache as upstream

from .batch_rotating import BatchWindows, own_step
from .buffers import Array, Independent, KeysAndValues, drop_front, join, owned, regrow, shared
from .capacity import positive
from .pinned import PinnedWindows, fill


class RotatingKVCache(Independent, KeysAndValues, upstream.RotatingKVCache):  # type: ignore[misc]
    """Drop-in for mlx-lm's RotatingKVCache; with no option set, the same arrays and state.

    capacity: columns to allocate on first use, at most `max_size`; pass `max_size` for the
        whole window. A multi-token update then leaves `max_size` columns behind, not
        max_size - 1 + n, and below the window it writes in place.
    step: the growth increment in tokens below the window, instead of 256.

    What `update_and_fetch` returns is upstream's bit for bit and column for column in every
    case, and `state` is one that upstream's class continues from. Unlike upstream's, `trim`
    refuses (returns 0) once the window has wrapped, and copies are independent.
    """

    capacity: int | None = None

    keys: Any
    values: Any
    offset: int
    _idx: int

    def __init__(
        self,
        max_size: int,
        keep: int = 0,
        step: int | None = None,
        *,
        capacity: int | None = None,
    ) -> None:
        super().__init__(max_size, keep)
        if step is not None:
            self.step = positive("step", step)
        if capacity is not None:
            self.capacity = min(positive("capacity", capacity), max_size)

    @property
    def state(self) -> tuple[Any, ...]:
        """Upstream's: the buffers themselves and the scalars."""
        base: tuple[Any, ...] = upstream.RotatingKVCache.state.fget(self)
        return base

    @state.setter
    def state(self, state: Any) -> None:
        upstream.RotatingKVCache.state.fset(self, shared(state))

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens; return how many, 0 once older ones were overwritten."""
        if not self.is_trimmable():
            return 0
        trimmed: int = super().trim(n)
        return trimmed

    @classmethod
    def merge(cls, caches: Any) -> Any:
        """Return one batch cache holding a copy of every cache, `keep` and room included."""
        return merge(caches)

    def _update_in_place(self, keys: Array, values: Array) -> tuple[Array, Array]:
        if self.capacity is not None and self._is_full_below_window():
            self._reserve(self.offset + 1, keys, values)
        updated: tuple[Array, Array] = super()._update_in_place(keys, values)
        return updated

    def _update_concat(self, keys: Array, values: Array) -> tuple[Array, Array]:
        if self.capacity is None:
            joined: tuple[Array, Array] = super()._update_concat(keys, values)
            return joined
        if self.offset + keys.shape[2] <= self.max_size:
            return self._write_below_window(keys, values)
        return self._write_through_window(keys, values)

    def _is_full_below_window(self) -> bool:
        if self.keys is None:
            return True
        columns: int = self.keys.shape[2]
        return bool(self.offset >= columns and columns < self.max_size)

    def _reserve(self, needed: int, keys: Array, values: Array) -> None:
        """Reallocate for at least `needed` tokens, which must fit in the window."""
        columns = max(needed, self.capacity or 0)
        if needed > (self.capacity or 0):
            columns = min(needed + self.step - 1, self.max_size)
        self.keys = regrow(self.keys, self._idx, columns, like=keys)
        self.values = regrow(self.values, self._idx, columns, like=values)

    def _write_below_window(self, keys: Array, values: Array) -> tuple[Array, Array]:
        start, end = self.offset, self.offset + keys.shape[2]
        if self.keys is None or end > self.keys.shape[2]:
            self._reserve(end, keys, values)
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        self.offset = self._idx = end
        current: tuple[Array, Array] = self.keys_and_values()
        return current

    def _write_through_window(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Attend over the window and the chunk, and retain the window only.

        The chunk's first query sees max_size - 1 older tokens and its last query the
        whole chunk, so a joined array of both is needed; it is the caller's alone and dies
        with this layer's attention. What is retained is a copy of its end.
        """
        joined_keys = join([*self._window(self.keys), keys])
        joined_values = join([*self._window(self.values), values])
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
        if self._idx == columns or self._idx >= self.offset:
            kept = buffer[..., : min(self.keep, self._idx), :]
            rest = [buffer[..., self.keep : self._idx, :]]
            held = self._idx
        else:
            kept = buffer[..., : self.keep, :]
            rest = [buffer[..., self._idx :, :], buffer[..., self.keep : self._idx, :]]
            held = columns
        evicted = max(0, held - (self.max_size - 1))
        return drop_front([kept], 0) + drop_front(rest, evicted)

    def _retained(self, joined: Array) -> Array:
        if self.keep == 0:
            return owned(joined[..., -self.max_size :, :])
        recent = joined[..., joined.shape[2] - (self.max_size - self.keep) :, :]
        return join([joined[..., : self.keep, :], recent])


class BatchRotatingKVCache(BatchWindows):
    """Drop-in for mlx-lm's BatchRotatingKVCache; with no option set, the same arrays and state.

    capacity and step are RotatingKVCache's; `merge` takes them from the first cache.
    """

    @classmethod
    def merge(cls, caches: Any) -> Any:
        """Return one batch cache with a copy of every cache; ValueError if windows differ."""
        return merge(caches)

    def new_row(self) -> RotatingKVCache:
        return RotatingKVCache(self.max_size, self.keep, own_step(self), capacity=self.capacity)


class PinnedBatchRotatingKVCache(PinnedWindows, BatchRotatingKVCache):
    """A BatchRotatingKVCache with `keep`; what a row attends to equals its own RotatingKVCache."""


def merge(caches: Sequence[Any]) -> BatchRotatingKVCache:
    """Return one batch cache with a copy of every rotating cache, `keep` included.

    Lazy. Raises ValueError when the caches differ in `max_size` or `keep`.
    """
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
