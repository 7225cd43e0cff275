"""RotatingKVCache: the last `max_size` tokens and the first `keep`, in a ring once it is full.

Three buffer orders occur. Before anything is lost: all tokens. After a multi-token update: the
sinks, then the recent tokens in temporal order. After single-token updates: a ring, whose next
slot `_idx` depends on when decoding began, so it is carried as the phase: attention sums in
buffer order, and another order gives other last bits.
"""

from collections.abc import Mapping
from typing import Any

from omlx_cache.adapters.base import (
    GroupSpec,
    Phase,
    Ranges,
    TokenRange,
    UnsupportedCache,
)
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array

STORED = 2
"""Part of every layout with windows. Pages of the first kind, which no namespace names any more,
may have a batch's padding among their tokens."""


class RotatingKVCacheAdapter(KVCacheAdapter):
    """mlx-lm's RotatingKVCache, and drop-in subclasses with its fields: a KVCache's, in a ring."""

    def group(self, cache: Any) -> GroupSpec:
        return GroupSpec("window", int(cache.max_size), int(cache.keep))

    def config(self, cache: Any) -> dict[str, int]:
        return {"max_size": int(cache.max_size), "keep": int(cache.keep), "stored": STORED}

    def held(self, cache: Any) -> Ranges:
        if cache.keys is None:
            return ()
        offset, index = int(cache.offset), int(cache._idx)
        length = int(cache.keys.shape[TOKEN_AXIS])
        if offset <= length:
            if index != offset and index != length:
                raise UnsupportedCache(f"RotatingKVCache with offset {offset} and index {index}")
            return (TokenRange(0, offset),) if offset else ()
        if index == length:
            return _temporal(offset, length, int(cache.keep))
        if length != cache.max_size or not cache.keep <= index < length:
            raise UnsupportedCache(f"RotatingKVCache of length {length} with index {index}")
        return _ring(offset, length, int(cache.keep), index)

    def phase(self, cache: Any) -> Phase:
        if cache.keys is None or cache.offset <= cache.keys.shape[TOKEN_AXIS]:
            return {}
        index = int(cache._idx)
        return {} if index == cache.keys.shape[TOKEN_AXIS] else {"index": index}

    def wanted(self, cache: Any, position: int, phase: Phase) -> Ranges:
        size, keep = int(cache.max_size), int(cache.keep)
        if position <= size:
            return (TokenRange(0, position),) if position else ()
        if _is_ring(phase, cache):
            return _ring(position, size, keep, phase["index"])
        return _temporal(position, size, keep)

    def grows(self, cache: Any) -> int | None:
        return None

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        cache.keys, cache.values = arrays["keys"], arrays["values"]
        cache.offset = position
        size = int(cache.max_size)
        if position <= size:
            cache._idx = position
        else:
            cache._idx = phase["index"] if _is_ring(phase, cache) else size


def _is_ring(phase: Phase, cache: Any) -> bool:
    """True for a phase whose index is one that a ring of the cache's size can have."""
    return "index" in phase and cache.keep <= phase["index"] < cache.max_size


def _temporal(offset: int, length: int, keep: int) -> Ranges:
    recent = TokenRange(offset - (length - keep), offset)
    return (TokenRange(0, keep), recent) if keep else (recent,)


def _ring(offset: int, size: int, keep: int, index: int) -> Ranges:
    oldest = offset - (size - keep)
    newest = offset - (index - keep)
    parts = (TokenRange(0, keep), TokenRange(newest, offset), TokenRange(oldest, newest))
    return tuple(part for part in parts if len(part))
