"""make_prompt_cache: the caches of a model, with room for the context that is expected."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.models import cache as upstream

from .capacity import positive
from .kv_cache import KVCache
from .rotating import RotatingKVCache

# mlx-lm's own choice for models that do not make their caches themselves.
SINK_TOKENS = 4


def make_prompt_cache(
    model: Any,
    max_kv_size: int | None = None,
    max_context: int | None = None,
    step: int | None = None,
) -> list[Any]:
    """Return the caches that mlx-lm would make for `model`, as this package's classes.

    max_kv_size: as upstream's: a rotating window, for models without a `make_cache`.
    max_context: tokens that the sequence will hold at most. Full-attention layers
        allocate room for it on first use, sliding-window layers their window (or
        `max_context`, when that is less).
    step: the growth increment of every layer that grows.

    Layers of other kinds (recurrent state, private classes) are upstream's, untouched.
    Raises ValueError for an option below 1.
    """
    if max_context is not None:
        positive("max_context", max_context)
    if step is not None:
        positive("step", step)
    made = _made_by_model(model, max_kv_size)
    return [_planned(cache, max_context, step) for cache in made]


def _made_by_model(model: Any, max_kv_size: int | None) -> Sequence[Any]:
    if hasattr(model, "make_cache"):
        made: Sequence[Any] = model.make_cache()
        return made
    if max_kv_size is None:
        return [upstream.KVCache() for _ in model.layers]
    return [upstream.RotatingKVCache(max_kv_size, keep=SINK_TOKENS) for _ in model.layers]


def _planned(cache: Any, max_context: int | None, step: int | None) -> Any:
    """Return an empty cache of the same behaviour that uses the options it can use."""
    if type(cache) is upstream.KVCache:
        return KVCache(max_size=max_context, step=step)
    if type(cache) is upstream.RotatingKVCache:
        return RotatingKVCache(cache.max_size, cache.keep, step, capacity=max_context)
    if type(cache) is upstream.CacheList:
        return upstream.CacheList(*(_planned(c, max_context, step) for c in cache.caches))
    if type(cache) is upstream.ChunkedKVCache and step is not None:
        cache.step = step
    return cache
