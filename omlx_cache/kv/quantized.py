"""QuantizedKVCache: as KVCache, each side held as packed integers, scales and biases."""

from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as upstream

from .buffers import Array, KeysAndValues, regrow, shared
from .capacity import Capacity, Growth


class QuantizedKVCache(Capacity, KeysAndValues, upstream.QuantizedKVCache):  # type: ignore[misc]
    """Drop-in for mlx-lm's QuantizedKVCache; with no option set, the same bits.

    step, max_size and growth are KVCache's.
    """

    def __init__(
        self,
        group_size: int = 64,
        bits: int = 8,
        step: int | None = None,
        *,
        max_size: int | None = None,
        growth: Growth | None = None,
    ) -> None:
        super().__init__(group_size=group_size, bits=bits)
        self._set_options(max_size, step, growth)

    @property
    def state(self) -> tuple[Any, ...]:
        """Upstream's: the buffers themselves, over-allocation included, and the scalars."""
        base: tuple[Any, ...] = upstream.QuantizedKVCache.state.fget(self)
        return base

    @state.setter
    def state(self, state: Any) -> None:
        upstream.QuantizedKVCache.state.fset(self, shared(state))

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Any, Any]:
        """Quantise and append (B, heads, n, dim); return all tokens so far, quantised; lazy."""
        if not self._plans_ahead():
            fetched: tuple[Any, Any] = super().update_and_fetch(keys, values)
            return fetched
        start, end = self.offset, self.offset + keys.shape[2]
        self.keys = self._append(self.keys, self._encode(keys), start, end)
        self.values = self._append(self.values, self._encode(values), start, end)
        self.offset = end
        current: tuple[Any, Any] = self.keys_and_values()
        return current

    def _encode(self, side: Array) -> Any:
        return mx.quantize(side, group_size=self.group_size, bits=self.bits)

    def _append(self, buffers: Any, parts: Any, start: int, end: int) -> tuple[Array, ...]:
        if buffers is None or end > buffers[0].shape[2]:
            columns = self._columns(end)
            old = [None] * len(parts) if buffers is None else buffers
            buffers = tuple(
                regrow(buffer, start, columns, like=part)
                for buffer, part in zip(old, parts, strict=True)
            )
        for buffer, part in zip(buffers, parts, strict=True):
            buffer[..., start:end, :] = part
        return tuple(buffers)
