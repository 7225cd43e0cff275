"""BatchWindows: the windows of several sequences in one buffer, as upstream lays them out.

Columns are shared by all rows, padding is on the left, and nothing is kept: a row's first
tokens lie in other columns in every row, which is what `pinned` is for.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from mlx_lm.models import cache as upstream

from .buffers import Array, Independent, KeysAndValues, owned, regrow, shared
from .capacity import positive


class BatchWindows(Independent, KeysAndValues, upstream.BatchRotatingKVCache):  # type: ignore[misc]
    """mlx-lm's BatchRotatingKVCache with room and without its waste; `rotating` makes it whole."""

    keep = 0
    capacity: int | None = None

    keys: Any
    values: Any
    max_size: int
    _idx: int

    def __init__(
        self,
        max_size: int,
        left_padding: Sequence[int],
        step: int | None = None,
        *,
        capacity: int | None = None,
    ) -> None:
        super().__init__(max_size, list(left_padding))
        if step is not None:
            self.step = positive("step", step)
        if capacity is not None:
            self.capacity = min(positive("capacity", capacity), max_size)

    @property
    def state(self) -> tuple[Any, ...]:
        """The buffers themselves and upstream's scalars."""
        base: tuple[Any, ...] = upstream.BatchRotatingKVCache.state.fget(self)
        return base

    @state.setter
    def state(self, state: Any) -> None:
        self._lengths = None
        upstream.BatchRotatingKVCache.state.fset(self, shared(state))

    def trim(self, n: int) -> int:
        """Forget the last `n` tokens; return how many, 0 once older ones were overwritten."""
        if not self.is_trimmable():
            return 0
        trimmed: int = super().trim(n)
        return trimmed

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
        """Move right padding to the front, then give back what exceeds the window."""
        super().finalize()
        self._give_back_surplus()

    def _update_in_place(self, keys: Array, values: Array) -> tuple[Array, Array]:
        if self.capacity is not None and self._is_full_below_window():
            columns = max(self.capacity, min(self._offset + self.step, self.max_size))
            self.keys = regrow(self.keys, self._idx, columns, like=keys)
            self.values = regrow(self.values, self._idx, columns, like=values)
        updated: tuple[Array, Array] = super()._update_in_place(keys, values)
        return updated

    def _is_full_below_window(self) -> bool:
        if self.keys is None:
            return True
        columns: int = self.keys.shape[2]
        return bool(self._offset >= columns and columns < self.max_size)

    def _update_concat(self, keys: Array, values: Array) -> tuple[Array, Array]:
        joined: tuple[Array, Array] = super()._update_concat(keys, values)
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


def own_step(cache: Any) -> int | None:
    """Return the step that was set on this cache itself, None for the class's."""
    step: int | None = cache.__dict__.get("step")
    return step
