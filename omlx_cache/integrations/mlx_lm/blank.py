"""Empty caches of the same classes and parameters as filled ones."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.models import cache as upstream

from omlx_cache.adapters.base import UnsupportedCache


def blank_like(prompt_cache: Sequence[Any]) -> list[Any]:
    """Return new, empty caches; raises UnsupportedCache for a class that is not mlx-lm's own."""
    return [_blank(cache) for cache in prompt_cache]


def dense_like(prompt_cache: Sequence[Any]) -> list[Any]:
    """Return what `blank_like` does, dense where a model's own dense caches were packed since.

    mlx-lm packs all of them at once: beside a dense one, packed caches are the model's own.
    """
    blank = blank_like(prompt_cache)
    if any(type(cache) is upstream.KVCache for cache in blank):
        return blank
    return [
        upstream.KVCache() if type(cache) is upstream.QuantizedKVCache else cache for cache in blank
    ]


def _blank(cache: Any) -> Any:
    kind = type(cache)
    if kind is upstream.KVCache:
        return upstream.KVCache()
    if kind is upstream.QuantizedKVCache:
        return upstream.QuantizedKVCache(cache.group_size, cache.bits)
    if kind is upstream.RotatingKVCache:
        return upstream.RotatingKVCache(cache.max_size, cache.keep)
    if kind is upstream.ArraysCache:
        return upstream.ArraysCache(len(cache.cache))
    if kind is upstream.CacheList:
        return upstream.CacheList(*blank_like(cache.caches))
    raise UnsupportedCache(f"{kind.__module__}.{kind.__qualname__}")
