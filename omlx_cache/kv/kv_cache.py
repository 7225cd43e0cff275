"""KVCache: every token of one layer, in one buffer whose length can be planned."""

from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as upstream

from .buffers import Array, KeysAndValues, regrow, shared
from .capacity import Capacity, Growth
from .quantized import QuantizedKVCache


class KVCache(Capacity, KeysAndValues, upstream.KVCache):  # type: ignore[misc]
    """Drop-in for mlx-lm's KVCache; with no option set, the same arrays in the same buffers.

    max_size: tokens to allocate room for on first use; no reallocation up to there. Past
        it the cache grows, with one `CapacityWarning`.
    step: the growth increment in tokens, instead of 256.
    growth: a policy instead of `step`, such as `Geometric()`.

    Unlike upstream's, a shallow copy and a cache built from another one's `state` do not
    see each other's later writes.
    """

    def __init__(
        self,
        max_size: int | None = None,
        step: int | None = None,
        *,
        growth: Growth | None = None,
    ) -> None:
        super().__init__()
        self._set_options(max_size, step, growth)

    @property
    def state(self) -> tuple[Any, ...]:
        """Upstream's: the buffers themselves, over-allocation included, and the token count."""
        base: tuple[Any, ...] = upstream.KVCache.state.fget(self)
        return base

    @state.setter
    def state(self, state: Any) -> None:
        upstream.KVCache.state.fset(self, shared(state))

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append (B, heads, n, dim) and return all tokens so far; lazy, mutates the cache."""
        if not self._plans_ahead():
            fetched: tuple[Array, Array] = super().update_and_fetch(keys, values)
            return fetched
        start, end = self.offset, self.offset + keys.shape[2]
        if self.keys is None or end > self.keys.shape[2]:
            columns = self._columns(end)
            self.keys = regrow(self.keys, start, columns, like=keys)
            self.values = regrow(self.values, start, columns, like=values)
        self.keys[..., start:end, :] = keys
        self.values[..., start:end, :] = values
        self.offset = end
        current: tuple[Array, Array] = self.keys_and_values()
        return current

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> QuantizedKVCache:
        """Return a quantised cache with the same content, room and options; lazy."""
        twin = QuantizedKVCache(group_size=group_size, bits=bits, **self._options())
        twin.offset = self.offset
        if self.keys is not None:
            twin.keys = self._quantized(self.keys, group_size, bits)
            twin.values = self._quantized(self.values, group_size, bits)
        return twin

    def _quantized(self, buffer: Array, group_size: int, bits: int) -> Any:
        if not self._plans_ahead():
            return mx.quantize(buffer, group_size=group_size, bits=bits)
        # Quantising the slack of a planned buffer would take as long as the content does.
        parts = mx.quantize(buffer[..., : self.offset, :], group_size=group_size, bits=bits)
        return tuple(regrow(part, self.offset, buffer.shape[2], like=part) for part in parts)
