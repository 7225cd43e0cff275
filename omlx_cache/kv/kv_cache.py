"""KVCache: every token of one layer, in one buffer whose length can be planned; QuantizedKVCache,
each side held as packed integers, scales and biases; and how long their buffers become.

A buffer that holds n tokens is copied whole each time it grows. Fixed steps copy O(n^2 / step)
tokens in all; a geometric policy copies O(n) and wastes at most `factor - 1` of its tokens.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as upstream

from .buffers import Array, Independent, Pair, own_step, positive, regrow


class Growth(Protocol):
    """A policy object: frozen, shared freely between caches and their copies."""

    def columns(self, needed: int) -> int:
        """Return the buffer length, in tokens, that replaces one too short for `needed`."""


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


@dataclass(frozen=True, slots=True)
class FixedStep:
    """Grow to the next multiple of `step` tokens."""

    step: int = 256

    def __post_init__(self) -> None:
        positive("step", self.step)

    def columns(self, needed: int) -> int:
        return round_up(needed, self.step)


@dataclass(frozen=True, slots=True)
class Geometric:
    """Grow to `factor` times the needed tokens, in multiples of `step`. `limit` is a ceiling on the
    slack, not on the cache: one that needs more gets that, rounded up to `step`."""

    factor: float = 1.25
    step: int = 256
    limit: int | None = None

    def __post_init__(self) -> None:
        positive("step", self.step)
        if not self.factor > 1.0:
            raise ValueError(f"factor must be above 1, got {self.factor!r}")
        if self.limit is not None:
            positive("limit", self.limit)

    def columns(self, needed: int) -> int:
        target = round_up(math.ceil(needed * self.factor), self.step)
        if self.limit is None or target <= self.limit:
            return target
        return self.limit if needed <= self.limit else round_up(needed, self.step)


class CapacityWarning(UserWarning):
    """A cache outgrew the `max_size` that it was allocated for, and reallocates from here on."""


class Capacity(Independent):
    """Mixin, what both classes share: decides how long a buffer becomes when it is too short.

    The options are class attributes too, because `from_state` builds caches without `__init__`.
    Mutable: `_warned`, and `_borrowed`: whether keys and values are views of another cache's longer
    buffers.
    """

    max_size: int | None = None
    growth: Growth | None = None
    _warned = False
    _borrowed = False

    offset: int
    keys: Any
    values: Any

    def _set_options(self, max_size: int | None, step: int | None, growth: Growth | None) -> None:
        if step is not None and growth is not None:
            raise ValueError("step and growth are two ways to say the same thing: give one")
        if max_size is not None:
            self.max_size = positive("max_size", max_size)
        if step is not None:
            self.step = positive("step", step)
        self.growth = growth

    def _options(self) -> dict[str, Any]:
        return {"max_size": self.max_size, "step": own_step(self), "growth": self.growth}

    def _plans_ahead(self) -> bool:
        """Whether upstream's own growth is replaced; `step` alone leaves it in place."""
        return self.max_size is not None or self.growth is not None

    def __copy__(self) -> Any:
        """Return an independent cache; a planned one shares only the tokens in use, as MLX copies a
        shared buffer whole at the first write. Its first append reallocates."""
        twin = super().__copy__()
        if self._plans_ahead() and self.keys is not None:
            twin.keys, twin.values = tree_map(
                lambda buffer: buffer[..., : self.offset, :], (twin.keys, twin.values)
            )
            twin._borrowed = True
        return twin

    def _append(self, buffers: Any, parts: Any, start: int) -> tuple[Array, ...]:
        end = start + parts[0].shape[2]
        if buffers is None or end > buffers[0].shape[2]:
            columns = self._columns(end)
            old = buffers or [None] * len(parts)
            buffers = [regrow(o, start, columns, like=p) for o, p in zip(old, parts, strict=True)]
        for buffer, part in zip(buffers, parts, strict=True):
            buffer[..., start:end, :] = part
        return tuple(buffers)

    def _columns(self, needed: int) -> int:
        self._borrowed = False
        if self.max_size is not None and needed <= self.max_size:
            return self.max_size
        if self.max_size is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"a cache allocated for max_size={self.max_size} tokens now holds {needed}: "
                "it grows, and reallocates from here on",
                CapacityWarning,
                stacklevel=4,
            )
        if self.growth is not None:
            return self.growth.columns(needed)
        step = own_step(self)
        return (Geometric() if step is None else FixedStep(step)).columns(needed)


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
