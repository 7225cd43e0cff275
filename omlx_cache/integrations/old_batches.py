"""Rows that mlx-lm before 0.32 computes in a batch as it computes them alone.

There a row that joins a batch before its first token makes the whole batch float32. The recurrent
state of an empty batch takes padding for tokens. Both are done by the caches, so a row's own caches
can do it right: nothing of mlx-lm is changed.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as upstream

from omlx_cache.adapters import adapter_for, register
from omlx_cache.mlx_lm_versions import is_old


def row_caches(generator: Any, restored: list[Any] | None) -> list[Any] | None:
    """Return what to insert a row with: its restored caches, or None where the generator makes
    right ones itself."""
    if not is_old():
        return restored
    return batchable(generator._make_new_cache() if restored is None else restored)


def batchable(prompt_cache: Sequence[Any]) -> list[Any]:
    """Return a row's caches, or others with their arrays, of classes whose batches are right."""
    return [_batchable(cache) for cache in prompt_cache]


def _batchable(cache: Any) -> Any:
    if type(cache) is upstream.CacheList:
        return upstream.CacheList(*batchable(cache.caches))
    kind = _RIGHT.get(type(cache))
    return cache if kind is None else _as(kind, cache)


def _as(kind: type, cache: Any) -> Any:
    """Return an object of another class, which has the same arrays and fields."""
    other: Any = object.__new__(kind)
    vars(other).update(vars(cache))
    return other


class _Extends:
    """Mixin of a batch: rows without tokens have the type of rows with some."""

    @classmethod
    def merge(cls, caches: Any) -> Any:
        # Of rows without tokens mlx-lm makes its own class.
        return _as(cls, super().merge(caches))  # type: ignore[misc]

    def extend(self: Any, other: Any) -> None:
        for empty, full in ((self, other), (other, self)):
            if empty.keys is None and full.keys is not None:
                rows = empty.offset.shape[0]
                empty.keys, empty.values = (
                    mx.zeros((rows, side.shape[1], 0, side.shape[3]), side.dtype)
                    for side in (full.keys, full.values)
                )
        super().extend(other)  # type: ignore[misc]


class RightBatchKVCache(_Extends, upstream.BatchKVCache):  # type: ignore[misc]
    pass


class RightBatchRotatingKVCache(_Extends, upstream.BatchRotatingKVCache):  # type: ignore[misc]
    pass


class RightKVCache(upstream.KVCache):  # type: ignore[misc]
    merge = RightBatchKVCache.merge


class RightRotatingKVCache(upstream.RotatingKVCache):  # type: ignore[misc]
    merge = RightBatchRotatingKVCache.merge


class RightArraysCache(upstream.ArraysCache):  # type: ignore[misc]
    lengths: Any

    def make_mask(self, N: int) -> Any:
        """Return which of the next `N` tokens are none of padding, on either side."""
        lengths: Any = self.lengths
        self.lengths = None
        mask = super().make_mask(N)
        self.lengths = lengths
        if lengths is None:
            return mask
        within = mx.arange(N) < lengths[:, None]
        return within if mask is None else mask & within


_RIGHT: dict[type, type] = {
    upstream.KVCache: RightKVCache,
    upstream.RotatingKVCache: RightRotatingKVCache,
    upstream.ArraysCache: RightArraysCache,
}

# A server that computes a row alone after all hands such caches back as they are.
for _own, _right in _RIGHT.items():
    register(
        f"{__name__}.{_right.__name__}",
        adapter_for(object.__new__(_own)),
        same_as=f"{_own.__module__}.{_own.__name__}",
    )
