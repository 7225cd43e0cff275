"""Keys and values for cache objects without a model, and what MLX holds of them."""

import gc
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

HEADS, DIM = 8, 128


def fill(prompt_cache: list[Any], count: int, start: int = 0) -> None:
    """Feed caches with `count` tokens' keys and values, evaluated."""
    for layer, cache in enumerate(prompt_cache):
        if isinstance(cache, ArraysCache):
            cache[0] = mx.full((1, HEADS, DIM, DIM), start + count, dtype=mx.float32)
            continue
        key = mx.random.key(layer * 100_000 + start)
        keys = mx.random.normal((1, HEADS, count, DIM), dtype=mx.bfloat16, key=key)
        mx.eval(cache.update_and_fetch(keys, keys + 1))


def held() -> int:
    """Bytes that MLX holds for anybody."""
    gc.collect()
    return int(mx.get_active_memory())
