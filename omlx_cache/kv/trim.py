"""trim_to_offset: give back the room that caches hold beyond their tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, TypeVar

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as upstream

from .buffers import Array, owned
from .capacity import Capacity
from .rotating import PinnedBatchRotatingKVCache
from .sequence import KVError

CacheSequence = TypeVar("CacheSequence", bound=Sequence[Any])


class CacheOffsetError(KVError, ValueError):
    """A cache's offset does not lie within its buffer: its content cannot be trusted."""


def trim_to_offset(prompt_cache: CacheSequence) -> CacheSequence:
    """Shrink every cache in place to the tokens it holds; return the same sequence.

    Evaluates MLX, one layer at a time, so that the peak is one layer's copy. A buffer
    without slack stays the same object. What a cache returns from here on is unchanged;
    only its next append reallocates. The memory goes back when nobody else (a copy, a
    view, work in flight) refers to the old buffer.

    Raises CacheOffsetError, before anything is changed, for an offset that is not within
    its buffer.
    """
    leaves = [leaf for cache in prompt_cache for leaf in _leaves(cache)]
    extents = [_extent(leaf) for leaf in leaves]
    for layer, extent in enumerate(extents):
        extent.check(layer)
    for leaf, extent in zip(leaves, extents, strict=True):
        if extent.retained < extent.columns or extent.borrowed:
            _shrink(leaf, extent)
    return prompt_cache


@dataclass(frozen=True, slots=True)
class _Extent:
    """Which columns of a buffer hold tokens: the first `head`, and the `tail` last ones.

    borrowed: the buffer may be a view of a longer one, which its shape does not tell.
    """

    columns: int
    head: int
    tail: int = 0
    borrowed: bool = False

    @property
    def retained(self) -> int:
        return self.head + self.tail

    def check(self, layer: int) -> None:
        valid = isinstance(self.head, int) and not isinstance(self.head, bool)
        if not valid or self.head < 0 or self.retained > self.columns:
            raise CacheOffsetError(
                f"cache {layer}: offset {self.head!r} is not within its buffer of "
                f"{self.columns} tokens"
            )

    def cut(self, buffer: Array) -> Array:
        if self.tail == 0:
            return owned(buffer[..., : self.head, :])
        tail = buffer[..., self.columns - self.tail :, :]
        if self.head == 0:
            return owned(tail)
        return mx.concatenate([buffer[..., : self.head, :], tail], axis=-2)


def _leaves(cache: Any) -> Iterator[Any]:
    if isinstance(cache, upstream.CacheList):
        for child in cache.caches:
            yield from _leaves(child)
    else:
        yield cache


def _shrink(cache: Any, extent: _Extent) -> None:
    if extent.retained == 0:
        cache.keys = cache.values = None
        return
    tight = tree_map(extent.cut, (cache.keys, cache.values))
    mx.eval(tight)
    cache.keys, cache.values = tight
    if isinstance(cache, Capacity):
        cache._borrowed = False
    if extent.tail:
        _after_window_cut(cache, extent)


def _after_window_cut(cache: Any, extent: _Extent) -> None:
    """Do what a rotating cache does itself when it drops to its window."""
    cache._idx = extent.retained
    if isinstance(cache, upstream.BatchRotatingKVCache):
        cache.left_padding = cache.left_padding - (extent.columns - extent.retained)


def _columns(cache: Any) -> int:
    if cache.keys is None:
        return 0
    first = cache.keys[0] if isinstance(cache.keys, tuple | list) else cache.keys
    columns: int = first.shape[-2]
    return columns


@singledispatch
def _extent(cache: Any) -> _Extent:
    """Classes that never over-allocate, recurrent state, private classes: nothing to cut."""
    return _Extent(columns=0, head=0)


@_extent.register(upstream.KVCache)
@_extent.register(upstream.QuantizedKVCache)
@_extent.register(upstream.ConcatenateKVCache)
def _by_offset(cache: Any) -> _Extent:
    borrowed = isinstance(cache, Capacity) and cache._borrowed
    return _Extent(_columns(cache), cache.offset, borrowed=borrowed)


@_extent.register(upstream.ChunkedKVCache)
def _by_chunk(cache: Any) -> _Extent:
    # Trimming its front leaves this class with a view.
    used = cache.offset - cache.start_position
    return _Extent(_columns(cache), used, borrowed=cache.start_position > 0)


@_extent.register(upstream.BatchKVCache)
def _by_index(cache: Any) -> _Extent:
    return _Extent(_columns(cache), cache._idx)


@_extent.register(upstream.RotatingKVCache)
def _by_window(cache: Any) -> _Extent:
    columns = _columns(cache)
    if columns > cache.max_size and cache._idx == columns:
        return _Extent(columns, head=cache.keep, tail=cache.max_size - cache.keep)
    if 0 <= cache._idx <= columns <= cache.offset:
        return _Extent(columns, columns)
    return _Extent(columns, cache._idx)


@_extent.register(upstream.BatchRotatingKVCache)
def _by_shared_window(cache: Any) -> _Extent:
    columns = _columns(cache)
    if cache.rotated or cache._lengths is not None:
        return _Extent(columns, columns)
    if columns > cache.max_size and cache._idx == columns:
        return _Extent(columns, head=0, tail=cache.max_size)
    return _Extent(columns, cache._idx)


@_extent.register(PinnedBatchRotatingKVCache)
def _by_longest_row(cache: Any) -> _Extent:
    return _Extent(_columns(cache), cache.size())
