"""What the caches allocate, measured with MLX's own counters."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as upstream

from kv.drive import active
from omlx_cache.kv import (
    BatchRotatingKVCache,
    KVCache,
    KVCacheManager,
    QuantizedKVCache,
    RotatingKVCache,
)

HEADS, DIM = 2, 64
TOKEN_BYTES = 2 * HEADS * DIM * 2  # keys and values, float16


def tokens(length: int, batch: int = 1) -> mx.array:
    return mx.ones((batch, HEADS, length, DIM), mx.float16)


def decode(cache: Any, steps: int, batch: int = 1) -> None:
    new = tokens(1, batch)
    for _ in range(steps):
        mx.eval(cache.update_and_fetch(new, new))


@pytest.mark.parametrize(
    ("make", "prefill"),
    [
        (lambda: KVCache(max_size=800), 300),
        (lambda: QuantizedKVCache(64, 8, max_size=800), 300),
        (lambda: RotatingKVCache(512, 4, capacity=512), 300),
        (lambda: RotatingKVCache(512, 4, capacity=512), 700),
        (lambda: BatchRotatingKVCache(512, [0], capacity=512), 700),
    ],
    ids=["kv", "quantized", "rotating", "rotating, prefilled past its window", "batch rotating"],
)
def test_decode_steps_allocate_nothing(make: Callable[[], Any], prefill: int) -> None:
    cache, new = make(), tokens(prefill)
    mx.eval(cache.update_and_fetch(new, new))
    del new
    decode(cache, 8)
    before = active()
    decode(cache, 1)
    mx.reset_peak_memory()
    decode(cache, 1)
    peak = mx.get_peak_memory()
    decode(cache, 400)
    assert active() == before
    # A token's encoding, or a batch's offsets, may overlap with the next step's: activations.
    activations = 4_096 if isinstance(cache, BatchRotatingKVCache | QuantizedKVCache) else 0
    assert mx.get_peak_memory() <= peak + activations


def test_a_planned_rotating_cache_retains_its_window_after_a_long_prefill() -> None:
    def retained(cache: Any) -> int:
        base = active()
        for _ in range(3):
            new = tokens(1_000)
            cache.update_and_fetch(new, new)
            mx.eval(cache.state)
            del new
        return active() - base

    assert retained(RotatingKVCache(256, 4, capacity=256)) == 256 * TOKEN_BYTES
    assert retained(upstream.RotatingKVCache(256, 4)) == (255 + 1_000) * TOKEN_BYTES


def test_the_pool_allocates_nothing_in_decode() -> None:
    base = active()
    pool = KVCacheManager(3, 2, 1_100, HEADS, DIM)
    assert active() - base == pool.memory_bytes == 3 * 2 * 1_100 * TOKEN_BYTES
    ids = [pool.allocate_sequence(1_100) for _ in range(3)]
    views = pool.views(*ids)
    new = tokens(1, batch=3)
    mx.eval(new)

    def step() -> None:
        for view in views:
            mx.eval(view.update_and_fetch(new, new))

    step()
    before = active()
    mx.reset_peak_memory()
    step()
    peak = mx.get_peak_memory()
    for _ in range(200):
        step()
    assert active() == before
    assert mx.get_peak_memory() == peak
    assert pool.get_seq_len(ids[0]) == 202
