"""A model's caches: made with room for the context that is expected, and cut to their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as upstream

from omlx_cache.adapters.registry import leaves

from .buffers import Array, owned, positive
from .kv_cache import Capacity, KVCache
from .manager import KVError
from .rotating import RotatingKVCache
from .windows import PinnedWindows

CacheSequence = TypeVar("CacheSequence", bound=Sequence[Any])

# mlx-lm's own choice for models that do not make their caches themselves.
SINK_TOKENS = 4


class CacheOffsetError(KVError, ValueError):
    """A cache's offset does not lie within its buffer: its content cannot be trusted."""


def make_prompt_cache(
    model: Any,
    max_kv_size: int | None = None,
    max_context: int | None = None,
    step: int | None = None,
) -> list[Any]:
    """Return the caches that mlx-lm would make for `model`, as this package's classes.

    max_kv_size: as upstream's: a rotating window, for models without a `make_cache`. max_context:
    tokens that the sequence will hold at most: full-attention layers allocate room for it on first
    use, sliding-window layers their window (or `max_context`, when that is less). step: the growth
    increment of every layer that grows.

    Layers of other kinds (recurrent state, private classes) are upstream's, untouched. Raises
    ValueError for an option below 1.
    """
    if max_context is not None:
        positive("max_context", max_context)
    if step is not None:
        positive("step", step)
    return [_planned(cache, max_context, step) for cache in _made_by_model(model, max_kv_size)]


def _made_by_model(model: Any, max_kv_size: int | None) -> Sequence[Any]:
    if hasattr(model, "make_cache"):
        return list(model.make_cache())
    if max_kv_size is None:
        return [upstream.KVCache() for _ in model.layers]
    return [upstream.RotatingKVCache(max_kv_size, keep=SINK_TOKENS) for _ in model.layers]


def _planned(cache: Any, max_context: int | None, step: int | None) -> Any:
    if type(cache) is upstream.KVCache:
        return KVCache(max_size=max_context, step=step)
    if type(cache) is upstream.RotatingKVCache:
        return RotatingKVCache(cache.max_size, cache.keep, step, capacity=max_context)
    if type(cache) is upstream.CacheList:
        return upstream.CacheList(*(_planned(c, max_context, step) for c in cache.caches))
    if type(cache) is upstream.ChunkedKVCache and step is not None:
        cache.step = step
    return cache


def trim_to_offset(prompt_cache: CacheSequence) -> CacheSequence:
    """Shrink every cache in place to the tokens it holds; return the same sequence.

    Evaluates MLX, one layer at a time, so that the peak is one layer's copy. A buffer without slack
    stays the same object. Only a cache's next append reallocates. The memory is freed when nothing
    else refers to the old buffer. Raises CacheOffsetError, before anything is changed, for an
    offset that is not within its buffer.
    """
    caches = [cache for _, cache in leaves(prompt_cache)]
    extents = [_extent(cache) for cache in caches]
    for layer, extent in enumerate(extents):
        extent.check(layer)
    for cache, extent in zip(caches, extents, strict=True):
        if extent.retained < extent.columns or extent.borrowed:
            _shrink(cache, extent)
    return prompt_cache


@dataclass(frozen=True, slots=True)
class _Extent:
    """Which columns of a buffer hold tokens: the first `head`, and the `tail` last ones.
    `borrowed`: the buffer may be a view of a longer one, which its shape does not tell."""

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
        head = buffer[..., : self.head, :]
        if self.tail == 0:
            return owned(head)
        tail = buffer[..., self.columns - self.tail :, :]
        return owned(tail) if self.head == 0 else mx.concatenate([head, tail], axis=-2)


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
        # A rotating cache does this itself when it drops to its window.
        cache._idx = extent.retained
        if isinstance(cache, upstream.BatchRotatingKVCache):
            cache.left_padding = cache.left_padding - (extent.columns - extent.retained)


_LONGER = (
    upstream.KVCache,
    upstream.QuantizedKVCache,
    upstream.ConcatenateKVCache,
    upstream.ChunkedKVCache,
    upstream.BatchKVCache,
    upstream.RotatingKVCache,
    upstream.BatchRotatingKVCache,
)
"""Whose buffers may be longer than their tokens: neither recurrent state nor private classes."""


def _extent(cache: Any) -> _Extent:
    if not isinstance(cache, _LONGER):
        return _Extent(columns=0, head=0)
    first = cache.keys[0] if isinstance(cache.keys, tuple | list) else cache.keys
    columns = 0 if first is None else first.shape[-2]
    match cache:
        case upstream.ChunkedKVCache():
            # Trimming its front leaves this class with a view.
            start = cache.start_position
            return _Extent(columns, cache.offset - start, borrowed=start > 0)
        case upstream.BatchKVCache():
            return _Extent(columns, cache._idx)
        case PinnedWindows():
            return _Extent(columns, cache.size())
        case upstream.BatchRotatingKVCache() if cache.rotated or cache._lengths is not None:
            return _Extent(columns, columns)
        case upstream.RotatingKVCache() | upstream.BatchRotatingKVCache():
            keep = getattr(cache, "keep", 0)
            if columns > cache.max_size and cache._idx == columns:
                return _Extent(columns, head=keep, tail=cache.max_size - keep)
            single = isinstance(cache, upstream.RotatingKVCache)
            whole = single and 0 <= cache._idx <= columns <= cache.offset
            return _Extent(columns, columns if whole else cache._idx)
    borrowed = isinstance(cache, Capacity) and cache._borrowed
    return _Extent(columns, cache.offset, borrowed=borrowed)
