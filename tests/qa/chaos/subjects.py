"""Models that compute nothing: real mlx-lm caches, fed with values that follow from the tokens.

Another token anywhere in the prefix changes every value behind it, so a page of another prefix,
position, layer or salt shows at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_LAYERS = np.uint64(1_000_003)

Words = np.ndarray[Any, np.dtype[np.uint64]]


def _mix(words: Words) -> Words:
    """SplitMix64's finaliser: a bijection in which every input bit moves every output bit."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


class Truth:
    """What caches must hold after these tokens; immutable. `prefix` has a word for the tokens up to
    each."""

    def __init__(self, tokens: Sequence[int]) -> None:
        places = np.arange(len(tokens), dtype=np.uint64)
        drawn = _mix(np.asarray(tokens, dtype=np.uint64) ^ _mix(places))
        self.prefix = _mix(np.cumsum(drawn, dtype=np.uint64))

    def __len__(self) -> int:
        return len(self.prefix)

    def rows(self, layer: int, side: int, heads: int, width: int, start: int, stop: int) -> Any:
        """Return float16 values of shape (1, heads, tokens, width), finite, all bits drawn."""
        count = heads * width
        words = self._draw(layer, side, -(-count // 4), self.prefix[start:stop])
        bits = words.view(np.uint16)[:, :count]
        # Exponents of infinities and NaNs would make quantised layers incomparable.
        bits = bits & np.uint16(0xBBFF)
        return np.ascontiguousarray(bits.reshape(stop - start, heads, width).transpose(1, 0, 2))[
            None
        ].view(np.float16)

    def state(self, layer: int, entry: int, shape: tuple[int, ...], position: int) -> Any:
        """Return a recurrent array in float32 as it is after `position` tokens."""
        count = int(np.prod(shape))
        words = self._draw(layer, 64 + entry, -(-count // 2), self.prefix[position - 1 : position])
        bits = words.view(np.uint32)[:, :count] & np.uint32(0xBF7FFFFF)
        return bits.reshape(shape).view(np.float32)

    def _draw(self, layer: int, side: int, count: int, prefix: Words) -> Words:
        lane = np.arange(count, dtype=np.uint64) + _mix(
            np.uint64(layer) * _LAYERS + np.asarray([side], np.uint64)
        )
        return np.ascontiguousarray(_mix(prefix[:, None] + _mix(lane)[None, :]))


HEADS, WIDTH, PACKED_WIDTH = 2, 8, 64
STATES = ((1, 3, 6), (1, 2, 4, 4))


@dataclass(frozen=True, slots=True)
class Mixture:
    """A kind of model by its layers. `anywhere`: it can be restored to any length."""

    name: str
    make: Callable[[], list[Any]]
    anywhere: bool = False


MIXTURES = {
    mixture.name: mixture
    for mixture in (
        Mixture("dense", lambda: [KVCache(), KVCache()], anywhere=True),
        Mixture("windowed", lambda: [RotatingKVCache(24, keep=4), KVCache()]),
        Mixture("hybrid", lambda: [ArraysCache(2), KVCache()]),
        Mixture("recurrent", lambda: [ArraysCache(2), ArraysCache(2)]),
        Mixture("chunked", lambda: [ChunkedKVCache(32), KVCache()]),
        Mixture("quantised", lambda: [QuantizedKVCache(64, 8)], anywhere=True),
        Mixture("lists", lambda: [CacheList(KVCache(), KVCache()), CacheList(KVCache())], True),
        Mixture("nested", lambda: [CacheList(ArraysCache(2), RotatingKVCache(32)), KVCache()]),
        Mixture("recurrent and windowed", lambda: [ArraysCache(2), RotatingKVCache(16)]),
    )
}


class Weights(nn.Module):
    """What a store takes a model's identity from."""

    def __init__(self, name: str, variant: int) -> None:
        super().__init__()
        self.args = {"mixture": name, "variant": variant}
        self.weight = mx.array([float(variant)])


def leaves(caches: list[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the caches inside lists with a number for each."""
    flat: list[Any] = []

    def walk(cache: Any) -> None:
        if isinstance(cache, CacheList):
            for child in cache.caches:
                walk(child)
        else:
            flat.append(cache)

    for cache in caches:
        walk(cache)
    yield from enumerate(flat)


def feed(caches: list[Any], truth: Truth, start: int, stop: int) -> None:
    """Give caches the tokens [start, stop), through their own updates; evaluates."""
    for layer, cache in leaves(caches):
        if isinstance(cache, ArraysCache):
            for entry, shape in enumerate(STATES):
                cache[entry] = mx.array(truth.state(layer, entry, shape, stop))
            cache.advance(stop - start)
            continue
        if isinstance(cache, ChunkedKVCache):
            cache.maybe_trim_front()
        width = width_of(cache)
        sides = (mx.array(truth.rows(layer, s, HEADS, width, start, stop)) for s in (0, 1))
        cache.update_and_fetch(*sides)
    mx.eval([cache.state for _, cache in leaves(caches)])


def width_of(cache: Any) -> int:
    return PACKED_WIDTH if isinstance(cache, QuantizedKVCache) else WIDTH


def wrong_in(caches: list[Any], truth: Truth, position: int) -> str:
    """Return what differs from the truth at a position, "" when every bit is right."""
    for layer, cache in leaves(caches):
        found = _wrong(layer, cache, truth, position)
        if found:
            return f"layer {layer}, {type(cache).__name__}: {found}"
    return ""


def _wrong(layer: int, cache: Any, truth: Truth, position: int) -> str:
    if isinstance(cache, ArraysCache):
        return _wrong_state(layer, cache, truth, position)
    if cache.offset != position:
        return f"it is at {cache.offset}, not at {position}"
    if position == 0:
        return ""
    tokens = _tokens(cache)
    if isinstance(cache, ChunkedKVCache) and cache.start_position > max(
        0, position - cache.chunk_size
    ):
        return f"its first token is {cache.start_position}, so that the window lacks some"
    for side, held in enumerate(_sides(cache)):
        if held[0].shape[2] != len(tokens):
            return f"{held[0].shape[2]} tokens are held where there should be {len(tokens)}"
        start, stop = int(tokens.min()), int(tokens.max()) + 1
        right = truth.rows(layer, side, HEADS, width_of(cache), start, stop)[:, :, tokens - start]
        expected = (
            mx.quantize(mx.array(right), group_size=cache.group_size, bits=cache.bits)
            if isinstance(cache, QuantizedKVCache)
            else (right,)
        )
        for ours, theirs in zip(held, expected, strict=True):
            if not _same(ours, theirs):
                return f"side {side} differs"
    return ""


def _wrong_state(layer: int, cache: ArraysCache, truth: Truth, position: int) -> str:
    for entry, shape in enumerate(STATES):
        if position == 0:
            if cache[entry] is not None:
                return f"entry {entry} is not empty"
        elif cache[entry] is None or not _same(
            cache[entry], truth.state(layer, entry, shape, position)
        ):
            return f"entry {entry} differs"
    return ""


def _same(ours: Any, theirs: Any) -> bool:
    a, b = np.array(ours), np.array(theirs)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _sides(cache: Any) -> list[tuple[Any, ...]]:
    """Return keys and values as the class itself orders them, tokens in temporal order."""
    if isinstance(cache, QuantizedKVCache):
        return [
            tuple(part[:, :, : cache.offset] for part in side)
            for side in (cache.keys, cache.values)
        ]
    if isinstance(cache, RotatingKVCache):
        ordered = (cache._temporal_order(array) for array in (cache.keys, cache.values))
        return [(array[:, :, : cache.offset],) for array in ordered]
    length = cache.offset - getattr(cache, "start_position", 0)
    return [(array[:, :, :length],) for array in (cache.keys, cache.values)]


def _tokens(cache: Any) -> Any:
    """Return the places of the tokens that a cache must hold, in temporal order."""
    end = int(cache.offset)
    if isinstance(cache, RotatingKVCache):
        length = min(end, int(cache.keys.shape[2]))
        if length < end and length < cache.max_size:
            length = int(cache.max_size)
        keep = int(cache.keep) if length < end else 0
        recent = np.arange(end - (length - keep), end)
        return np.concatenate([np.arange(keep), recent])
    return np.arange(int(getattr(cache, "start_position", 0)), end)
