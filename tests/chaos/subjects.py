"""Models that compute nothing: real mlx-lm caches, fed with values that follow from the tokens."""

from collections.abc import Callable, Iterator
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

from .truth import Truth

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
