"""make_prompt_cache on real model classes, and generation through what it makes."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import cache as upstream

from kit.examples import some
from kit.zoo import FAMILIES, build
from omlx_cache.kv import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache


def leaves(caches: Any) -> list[Any]:
    found = []
    for cache in caches:
        found.extend(leaves(cache.caches) if isinstance(cache, upstream.CacheList) else [cache])
    return found


@pytest.mark.parametrize("name", sorted(FAMILIES))
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


@pytest.mark.parametrize(
    "name", some(["qwen3", "gemma3_text", "qwen3_next", "deepseek_v3", "falcon_h1"], "gemma3_text")
)
def test_generation_is_the_same_with_planned_caches(name: str) -> None:
    if name not in FAMILIES:
        pytest.fail(f"no family {name} among {sorted(FAMILIES)}")
    model = build(name)
    prompt = mx.array([(7 * at) % 50 for at in range(90)])

    def generated(caches: list[Any]) -> list[Any]:
        steps = generate_step(
            prompt, model, max_tokens=8, prompt_cache=caches, prefill_step_size=32
        )
        return [(token, logits.tolist()) for token, logits in steps]

    expected = generated(upstream.make_prompt_cache(model))
    assert generated(make_prompt_cache(model, max_context=128)) == expected
    assert generated(make_prompt_cache(model, step=16)) == expected
    assert generated(make_prompt_cache(model)) == expected


def test_generation_with_kv_bits_quantises_into_our_class() -> None:
    model = build("llama")
    prompt = mx.array([(7 * at) % 50 for at in range(60)])

    def generated(caches: list[Any]) -> list[int]:
        steps = generate_step(
            prompt,
            model,
            max_tokens=6,
            prompt_cache=caches,
            kv_bits=8,
            kv_group_size=32,
            quantized_kv_start=20,
        )
        return [token for token, _ in steps]

    ours = make_prompt_cache(model, max_context=80)
    assert generated(ours) == generated(upstream.make_prompt_cache(model))
    assert all(isinstance(c, QuantizedKVCache) and c.max_size == 80 for c in ours)


def test_a_model_without_make_cache_gets_a_window_with_upstreams_sinks() -> None:
    model = build("qwen3")
    assert not hasattr(model, "make_cache")
    for cache in make_prompt_cache(model, max_kv_size=64, max_context=32):
        assert isinstance(cache, RotatingKVCache)
        assert (cache.max_size, cache.keep, cache.capacity) == (64, 4, 32)
    assert all(c.capacity is None for c in make_prompt_cache(model, max_kv_size=64))


def test_options_below_one_are_refused_even_for_models_that_cannot_use_them() -> None:
    model = build("mamba2") if "mamba2" in FAMILIES else build("qwen3")
    with pytest.raises(ValueError, match="max_context"):
        make_prompt_cache(model, max_context=0)
    with pytest.raises(ValueError, match="step"):
        make_prompt_cache(model, step=-1)


def test_without_options_nothing_is_planned() -> None:
    caches = make_prompt_cache(build("qwen3"))
    assert all(type(c) is KVCache and c.max_size is None and c.step == 256 for c in caches)
