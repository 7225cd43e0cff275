"""Every way to compute a prompt says how many tokens that were, and how long it took."""

import time
from typing import Any

import pytest
from mlx_lm.generate import BatchGenerator

from kit.examples import some
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.batch import CachedBatchGenerator
from omlx_cache.integrations.mlx_lm import generate
from omlx_cache_storage.stats import RequestStats

from .conftest import Open, model_of, prompt_of

TEXT = "The quick brown fox jumps over the lazy dog. " * 8


def _figures(store: BlockStore) -> RequestStats:
    """The store's figures, which never claim more seconds than the clock has shown."""
    figures = store.stats().requests
    assert figures.prefill_seconds + figures.restore_seconds <= store.stats().uptime_seconds
    records = store.requests.records()
    assert sum(record.computed_tokens for record in records) == figures.prefilled_tokens
    for record in records:
        assert record.computed_tokens == record.prompt_tokens - record.restored_tokens
    return figures


@pytest.mark.parametrize("family", some(["qwen3", "gemma3_text", "qwen3_next"], "qwen3_next"))
def test_a_batch_counts_each_token_once_and_each_second_once(
    family: str, store: BlockStore
) -> None:
    generator = BatchGenerator(model_of(family), prefill_step_size=256)
    batch = CachedBatchGenerator(generator, PrefixCache(model_of(family), store))
    # The last token, alone, is a step of decoding.
    prompts = [prompt_of(257, seed=number) for number in range(4)]
    for prompt in prompts:
        batch.submit(prompt, max_tokens=4)
    began = time.perf_counter()
    while len(batch):
        batch.next()
    took = time.perf_counter() - began
    figures = _figures(store)
    assert figures.prefilled_tokens == 1028
    assert 0 < figures.prefill_seconds <= took
    each = [record.compute_seconds for record in store.requests.records()]
    assert sum(each) > 2 * figures.prefill_seconds
    (rate,) = figures.prefill_tokens_per_second.values()
    assert rate == pytest.approx(1024 / figures.prefill_seconds)
    batch.submit(prompts[0], max_tokens=4)
    while len(batch):
        batch.next()
    again = _figures(store)
    assert again.prefilled_tokens == 1029 or family != "qwen3"
    (rate,) = again.prefill_tokens_per_second.values()
    saved = again.restored_tokens / rate - again.restore_seconds
    assert again.saved_seconds == pytest.approx(saved)


@pytest.mark.parametrize(
    "options", [{}, {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 16}], ids=str
)
def test_generate_is_measured_to_the_last_token(
    options: dict[str, Any], loaded: dict[str, tuple[Any, Any]], open_store: Open
) -> None:
    store = open_store()
    model, tokenizer = loaded["dense"]
    cache = PrefixCache(model, store)
    generate(model, tokenizer, TEXT, cache, max_tokens=4, prefill_step_size=180, **options)
    first = _figures(store)
    assert first.prefilled_tokens == len(TEXT)
    assert first.prefill_tokens_per_second
    generate(model, tokenizer, TEXT, cache, max_tokens=4, **options)
    assert _figures(store).prefilled_tokens == len(TEXT) + 1
    assert store.stats().requests.saved_seconds != 0
