"""KVCache: every token of one layer, in one buffer whose length can be planned; and
QuantizedKVCache, each side held as packed integers, scales and biases."""

from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as upstream

from .buffers import Array, Pair, regrow
from .capacity import Capacity, Growth


class QuantizedKVCache(Capacity, upstream.QuantizedKVCache):  # type: ignore[misc]
    """Drop-in for mlx-lm's QuantizedKVCache; with no option set, the same bits. The options are
    KVCache's."""

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

    def update_and_fetch(self, keys: Array, values: Array) -> Pair:
        """Quantise and append (B, heads, n, dim); return all tokens so far, quantised; lazy."""
        if not self._plans_ahead():
            return super().update_and_fetch(keys, values)
        encode = {"group_size": self.group_size, "bits": self.bits}
        self.keys = self._append(self.keys, mx.quantize(keys, **encode), self.offset)
        self.values = self._append(self.values, mx.quantize(values, **encode), self.offset)
        self.offset += keys.shape[2]
        return self.keys_and_values()


class KVCache(Capacity, upstream.KVCache):  # type: ignore[misc]
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

    def update_and_fetch(self, keys: Array, values: Array) -> Pair:
        """Append (B, heads, n, dim) and return all tokens so far; lazy, mutates the cache."""
        if not self._plans_ahead():
            return super().update_and_fetch(keys, values)
        buffers = None if self.keys is None else (self.keys, self.values)
        self.keys, self.values = self._append(buffers, (keys, values), self.offset)
        self.offset += keys.shape[2]
        return self.keys_and_values()

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
