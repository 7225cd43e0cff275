"""The prefix cache that vllm-mlx's schedulers call. The real scheduler is in tests/peers."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import KVCache, make_prompt_cache

from kit.examples import some
from omlx_cache import BlockStore
from omlx_cache.integrations.vllm_mlx import TieredPrefixCache, install
from omlx_cache.integrations.vllm_mlx.launch import follow_rows

from .conftest import Open, model_of, prompt_of


def computed(model: Any, tokens: list[int]) -> tuple[list[Any], mx.array]:
    """Return caches that hold the tokens, and the logits after the last one."""
    caches = make_prompt_cache(model)
    logits = model(mx.array([tokens]), cache=caches)[0, -1]
    mx.eval(logits, [cache.state for cache in caches])
    return caches, logits


def continued(model: Any, caches: list[Any], tokens: list[int]) -> mx.array:
    return model(mx.array([tokens]), cache=caches)[0, -1]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_next", "gemma3_text"])
def test_what_is_stored_is_restored_and_a_token_is_left_over(
    family: str, store: BlockStore
) -> None:
    model, tokens = model_of(family), prompt_of(300)
    cache = TieredPrefixCache(model, store)
    caches, _logits = computed(model, tokens)
    assert cache.fetch(tokens) == (None, tokens)
    assert cache._last_match_type == "miss"
    assert cache.store(tokens, caches)
    restored, rest = cache.fetch([*tokens, 7])
    assert (rest, cache._last_match_type) == ([7], "prefix")
    assert cache._last_matched_key == tuple(tokens)
    assert restored is not None
    assert mx.array_equal(continued(model, restored, rest), continued(model, caches, rest))
    assert cache.held_by(restored) == tokens
    assert cache.held_by(make_prompt_cache(model)) == []


def test_prompts_that_are_served_together_come_back_up_to_their_last_token(
    open_store: Open,
) -> None:
    """The answer completes the block in which the prompt ends."""
    model, prompts = model_of("qwen3"), [prompt_of(250, seed) for seed in range(3)]
    cache = TieredPrefixCache(model, open_store())
    for prompt in prompts:
        assert cache.fetch(prompt) == (None, prompt)
    for prompt in prompts:
        answered = [*prompt, *prompt_of(12)]
        assert cache.store(answered, computed(model, answered)[0])
    again = TieredPrefixCache(model, open_store())
    assert [len(again.fetch(prompt)[1]) for prompt in prompts] == [1, 1, 1]


def test_a_prepared_entry_is_the_cache_of_that_moment(store: BlockStore) -> None:
    model, tokens = model_of("qwen3_next"), prompt_of(200)
    cache = TieredPrefixCache(model, store)
    caches, _logits = computed(model, tokens)
    entry = cache.prepare_store(tokens, caches)
    assert entry is not None
    assert entry.memory_bytes > 0
    mx.eval(continued(model, caches, prompt_of(50, 5)))
    assert tokens not in cache
    assert cache.commit_prepared(entry)
    restored, rest = cache.fetch([*tokens, 7])
    fresh, _logits = computed(model, tokens)
    assert restored is not None
    assert mx.array_equal(continued(model, restored, rest), continued(model, fresh, rest))


def test_a_prompt_with_its_logits_comes_back_whole_and_any_other_does_not(
    store: BlockStore,
) -> None:
    model, tokens = model_of("qwen3_next"), prompt_of(200)
    cache = TieredPrefixCache(model, store)
    caches, logits = computed(model, tokens)
    entry = cache.prepare_store(tokens, caches, auxiliary={"last_logits": logits})
    assert entry is not None
    assert cache.fetch_exact_auxiliary(tokens) is None
    assert cache.commit_prepared(entry)
    beside = cache.fetch_exact_auxiliary(tokens)
    assert beside is not None
    assert mx.array_equal(beside["last_logits"], logits)
    restored, rest = cache.fetch(tokens)
    assert (rest, cache._last_match_type) == ([], "exact")
    assert restored is not None
    assert mx.array_equal(continued(model, restored, [7]), continued(model, caches, [7]))
    assert cache.fetch_exact_auxiliary([*tokens, 7]) is None
    assert cache.fetch([*tokens, 7])[1] == [7]
    assert cache.remove(tokens, include_ssd=True)
    assert cache.fetch_exact_auxiliary(tokens) is None
    assert not cache.commit_prepared(entry, commit_guard=lambda: False)


@pytest.mark.parametrize(
    "family", some(["qwen3", "qwen3_next", "lfm2", "jamba", "mamba", "rwkv7"], "qwen3_next")
)
def test_what_a_row_of_a_batch_leaves_is_what_a_request_alone_holds(
    family: str, store: BlockStore
) -> None:
    model = model_of(family)
    cache = TieredPrefixCache(model, store)
    generator = follow_rows(BatchGenerator(model, max_tokens=3), cache, lambda prompt: ())
    prompts = [prompt_of(length, seed=length) for length in (150, 70, 113)]
    generator.insert(prompts)
    ended: dict[int, Any] = {}
    while len(ended) < len(prompts):
        _prompts, generated = generator.next()
        ended.update({one.uid: one for one in generated if one.finish_reason is not None})
    for response in ended.values():
        tokens = list(response.all_tokens)
        cache.store(tokens, response.prompt_cache)
        restored, rest = cache.fetch([*tokens, 7])
        assert restored is not None
        fresh, _logits = computed(model, tokens[: len(tokens) + 1 - len(rest)])
        given, expected = continued(model, restored, rest), continued(model, fresh, rest)
        assert mx.abs(given - expected).max() <= 0.05 * mx.abs(expected).max()


def test_clear_gives_memory_back_and_leaves_the_disk_and_other_models(open_store: Open) -> None:
    with open_store() as store:
        tokens, models = prompt_of(600), [model_of("qwen3"), model_of("qwen3_next")]
        caches = [TieredPrefixCache(model, store) for model in models]
        for cache, model in zip(caches, models, strict=True):
            assert cache.store(tokens, computed(model, tokens)[0])
        assert store.flush()
        both = store.hot_usage().nbytes
        caches[0].clear()
        assert 0 < store.hot_usage().nbytes < both
        caches[1].clear()
        assert store.hot_usage().nbytes == 0
        assert caches[0].get_stats()["misses"] == 0
        assert caches[0].fetch([*tokens, 7])[1] == [7]


def test_counts_are_those_that_the_server_shows(store: BlockStore) -> None:
    model, tokens = model_of("qwen3"), prompt_of(300)
    cache = TieredPrefixCache(model, store)
    cache.fetch(tokens)
    assert cache.store(tokens, computed(model, tokens)[0])
    cache.fetch([*tokens, 7])
    stats = cache.get_stats()
    assert (stats["hits"], stats["misses"], stats["hit_rate"]) == (1, 1, 0.5)
    assert (stats["tokens_saved"], stats["entry_count"]) == (300, 1)
    assert 0 < stats["current_memory_mb"] <= stats["max_memory_mb"]
    assert (len(cache), len(cache._entries)) == (1, 1)
    cache.reset_stats()
    assert cache.get_stats()["hits"] == 0
    assert tokens in cache


def test_what_cannot_be_stored_is_refused_and_counted(store: BlockStore) -> None:
    model = model_of("qwen3")
    cache = TieredPrefixCache(model, store)
    assert not cache.store([], make_prompt_cache(model))
    assert not cache.store([1, 2, 3], [])
    assert not cache.store([1, 2, 3], [object(), object()])
    assert cache.get_stats()["store_rejections"] == 1
    assert cache.fetch([1, 2, 3, 4])[0] is None
    unknown = TieredPrefixCache(object(), store)
    assert unknown.fetch([1, 2, 3]) == (None, [1, 2, 3])
    assert not unknown.store([1, 2, 3], [KVCache()])


def test_only_a_scheduler_takes_the_cache(store: BlockStore) -> None:
    with pytest.raises(TypeError, match="Scheduler"):
        install(object(), store)
