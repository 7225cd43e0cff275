"""RotatingKVCache: the last `max_size` tokens and the first `keep`, in a ring once it is full.

Three buffer orders occur. Before anything is lost: all tokens. After a multi-token update: the
sinks, then the recent tokens in temporal order. After single-token updates: a ring, whose next
slot `_idx` depends on when decoding began, so it is carried as the phase: attention sums in
buffer order, and another order gives other last bits.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from omlx_cache.adapters.base import (
    GroupSpec,
    Phase,
    Ranges,
    TokenRange,
    UnsupportedCache,
    class_name,
)
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array
from omlx_cache.mlx_lm_versions import is_cache

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


def extracted(caches: Sequence[Any]) -> list[Any]:
    """Return caches of one row of a batch as far as they are surely the row's; changes none.

    Where rows of different lengths are padded, mlx-lm's batch of windows loses count of a row's
    padding once the window has moved on: the oldest tokens of what it extracts may be padding. The
    last `max_size` are always the row's, and no attention has looked at more.
    """
    return [_extracted(cache) for cache in caches]


def _extracted(cache: Any) -> Any:
    if _is(cache, "CacheList"):
        other = copy.copy(cache)
        other.caches = tuple(extracted(cache.caches))
        return other
    if not _is(cache, "RotatingKVCache") or cache.keys is None:
        return cache
    length, most = cache.keys.shape[TOKEN_AXIS], cache.max_size
    if cache.keep or length <= most or cache._idx != length:
        return cache
    other = copy.copy(cache)
    other.keys, other.values = cache.keys[..., -most:, :], cache.values[..., -most:, :]
    other._idx = most
    return other


def _is(cache: Any, name: str) -> bool:
    """True for an instance of mlx-lm's class, and for mlx-vlm's own, which loses count as well."""
    return is_cache(cache, name) or class_name(cache) == f"mlx_vlm.models.cache.{name}"
