"""The common part of a window and its batches, and the windows of several sequences in one buffer,
as upstream lays them out: columns are shared by all rows, padding is on the left, and no first
tokens stay. Those lie in other columns in every row; `pinned` is for them."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from mlx_lm.models import cache as upstream

from .buffers import Array, Independent, Pair, owned, regrow
from .capacity import positive


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
        """Reallocate for `needed` tokens, or the window, where there is less; keep `used` ones."""
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
