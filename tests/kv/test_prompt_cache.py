"""make_prompt_cache makes mlx-lm's classes with the options; trim_to_offset frees for real, changes
nothing that a cache returns, and refuses nonsense."""

import copy
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as upstream

from kit.examples import some
from kit.versions import BEFORE_0_32
from kit.zoo import FAMILIES, build
from kv.drive import active, assert_same, chunk, fed
from omlx_cache.kv import (
    CacheOffsetError,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
    trim_to_offset,
)


def chunked(*lengths: int) -> upstream.ChunkedKVCache:
    cache = fed(upstream.ChunkedKVCache(40), *lengths)
    cache.maybe_trim_front()
    return cache


def trimmed(cache: Any, count: int) -> Any:
    cache.trim(count)
    return cache


CASES = {
    "kv": lambda: fed(upstream.KVCache(), 20),
    "kv, planned": lambda: fed(KVCache(max_size=900), 20),
    "kv, trimmed": lambda: trimmed(fed(KVCache(), 300), 200),
    "quantized": lambda: fed(upstream.QuantizedKVCache(32, 4), 20),
    "quantized, planned": lambda: fed(QuantizedKVCache(32, 4, max_size=900), 20),
    "batch": lambda: fed(upstream.BatchKVCache([3, 0]), 20),
    "rotating, decoding": lambda: fed(RotatingKVCache(500, 4), 3, 1),
    "rotating, planned": lambda: fed(RotatingKVCache(500, 4, capacity=500), 20),
    "rotating, after a long chunk": lambda: fed(RotatingKVCache(32, 4), 20, 40),
    "rotating, trimmed": lambda: trimmed(fed(RotatingKVCache(500), 300), 200),
    "batch of windows": lambda: fed(upstream.BatchRotatingKVCache(500, [2, 0]), 3, 1),
    "batch of windows, after a long chunk": lambda: fed(
        upstream.BatchRotatingKVCache(32, [2, 0]), 20, 40
    ),
    "batch with keep": lambda: fed(
        RotatingKVCache.merge([RotatingKVCache(500, 4, capacity=500)] * 2), 20
    ),
    "copy of a planned one": lambda: copy.deepcopy(fed(KVCache(max_size=900), 20)),
    "copy of a planned quantized one": lambda: copy.deepcopy(
        fed(QuantizedKVCache(32, 4, max_size=900), 20)
    ),
    "list": lambda: upstream.CacheList(fed(KVCache(), 3), fed(upstream.QuantizedKVCache(32), 5)),
}
if not BEFORE_0_32:
    # There its start lies behind its end.
    CASES["chunked"] = lambda: chunked(30, 30, 1)


def buffers(cache: Any) -> list[mx.array]:
    found = []
    for leaf in getattr(cache, "caches", [cache]):
        for side in (leaf.keys, leaf.values):
            found.extend(side if isinstance(side, tuple | list) else [side])
    return found


@pytest.mark.parametrize("name", CASES)
def test_slack_is_freed_to_the_byte_and_the_cache_goes_on_the_same(name: str) -> None:
    base = active()
    cache = CASES[name]()
    mx.eval(buffers(cache))
    before = active() - base
    assert trim_to_offset([cache])[0] is cache
    held = active() - base
    assert held < before
    # Offsets and paddings of batch classes are arrays of a few bytes each.
    assert cache.nbytes <= held <= cache.nbytes + 256

    untouched = CASES[name]()
    for ours, theirs in zip(
        getattr(cache, "caches", [cache]), getattr(untouched, "caches", [untouched]), strict=True
    ):
        batch = buffers(ours)[0].shape[0]
        for length in (1, 1, 40, 1):
            if hasattr(ours, "make_mask"):
                asked = {"window_size": None, "return_array": False}
                assert_same([ours.make_mask(length, **asked)], [theirs.make_mask(length, **asked)])
            keys, values = chunk(length, batch, length, "float16")
            assert_same(ours.update_and_fetch(keys, values), theirs.update_and_fetch(keys, values))


def test_the_peak_is_one_layers_copy() -> None:
    caches = [fed(KVCache(max_size=4_000), 2_000) for _ in range(8)]
    mx.eval([c.state for c in caches])
    layer = caches[0].nbytes
    before = active()
    mx.reset_peak_memory()
    trim_to_offset(caches)
    assert mx.get_peak_memory() - before <= layer


@pytest.mark.parametrize("offset", [-1, 257, 2.0, True, None])
def test_an_offset_outside_the_buffer_is_refused_and_nothing_is_cut(offset: Any) -> None:
    good, bad = fed(KVCache(), 20), fed(KVCache(), 20)
    bad.offset = offset
    kept = copy.deepcopy(good.state)
    with pytest.raises(CacheOffsetError, match=r"cache 1: offset .* of 256 tokens"):
        trim_to_offset([good, bad])
    assert_same(good.state, kept)


def leaves(caches: Any) -> list[Any]:
    found = []
    for cache in caches:
        found.extend(leaves(cache.caches) if isinstance(cache, upstream.CacheList) else [cache])
    return found


@pytest.mark.parametrize(
    "name", some(sorted(FAMILIES), "qwen3", "gemma3_text", "falcon_h1", "llama4", "mamba2")
)
def test_every_family_gets_upstreams_classes_with_the_options(name: str) -> None:
    model = build(name)
    theirs = leaves(upstream.make_prompt_cache(model))
    ours = leaves(make_prompt_cache(model, max_context=100, step=32))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert type(mine).__name__ == type(other).__name__
        assert isinstance(mine, type(other))
        if type(other) is upstream.KVCache:
            assert (mine.max_size, mine.step) == (100, 32)
        if type(other) is upstream.RotatingKVCache:
            assert (mine.max_size, mine.keep) == (other.max_size, other.keep)
            assert (mine.capacity, mine.step) == (min(100, other.max_size), 32)
        if type(other) is upstream.ChunkedKVCache:
            assert mine.step == 32


def test_options_below_one_are_refused_even_for_models_that_cannot_use_them() -> None:
    model = build("mamba2")
    with pytest.raises(ValueError, match="max_context"):
        make_prompt_cache(model, max_context=0)
    with pytest.raises(ValueError, match="step"):
        make_prompt_cache(model, step=-1)
