"""`memory_once` in a batch and under mlx-lm's server: held once while computed, back at the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from kit.drive import feed, random_tokens, settings
from kit.filling import held
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.batch import CachedBatchGenerator
from omlx_cache.integrations.mlx_lm import LoadedModel, TieredPromptCache
from omlx_cache_storage.keys import as_tokens

KEY = ("a model", None, None)
WIDE = 2 * 2 * 8 * 128 * 2
"""Bytes of a token in `wide`."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    with BlockStore(settings(tmp_path, memory_once=True)) as store:
        yield store


@pytest.fixture(scope="module")
def wide() -> Any:
    """A model whose caches are large beside everything else."""
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    args = llama.ModelArgs(model_type="llama", rms_norm_eps=1e-5, vocab_size=64, **shape, **heads)
    model = llama.Model(args)
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    return model


def test_a_request_of_a_batch_takes_its_tokens_once(store: BlockStore, wide: Any) -> None:
    cache = PrefixCache(wide, store)
    prompt = random_tokens(1500, 1, vocab=64)
    before = held()
    for count in (1000, 1500):
        batch = CachedBatchGenerator(BatchGenerator(wide, prefill_step_size=256), cache)
        batch.submit(prompt[:count], max_tokens=8)
        tokens = 0
        while len(batch):
            tokens += len(batch.next())
            if tokens == 4:
                assert store.flush(60)
                # A batch's buffers grow by 256 tokens.
                assert held() - before <= 1.15 * WIDE * (count + 256)
        batch.close()
        assert store.flush(60)
        assert store.stats().hot.nbytes >= WIDE * (count // 32 * 32)
    assert store.stats().hot.let_go_pages > 0
    figures = store.stats().requests
    assert figures.restored_tokens >= 1000
    assert figures.restored_cold_tokens == 0


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "qwen3_next"])
def test_what_is_inserted_on_the_way_stays_out_until_the_end(
    store: BlockStore, family: str
) -> None:
    model, tokens = zoo.build(family), random_tokens(400, 1)
    cache = TieredPromptCache(store, LoadedModel(KEY, model))
    live = make_prompt_cache(model)
    (following,) = cache.followers(KEY, tokens[:0], 0)
    for end in (160, 320, 400):
        feed(model, live, tokens[end - (160 if end < 400 else 80) : end])
        following.caches(tokens[:end], live, keep=True)
        assert store.flush(60)
        if end == 320:
            here = store.stats().hot.pages
            cache.insert_cache(KEY, tokens[:end], live, cache_type="user")
            assert store.flush(60)
            # At most the end's own pages were added, not the blocks that left before.
            assert store.stats().hot.pages <= here + len(live)
    assert store.stats().hot.let_go_pages >= 320 // 32
    following.close()
    cache.insert_cache(KEY, tokens, live)
    assert store.flush(60)
    found, rest = cache.fetch_nearest_cache(KEY, [*tokens, 1])
    assert found is not None
    assert rest == [1]
    assert cache.last is not None
    assert (cache.last.restored_tokens, cache.last.cold_tokens) == (400, 0)


def test_what_a_request_in_the_server_s_queue_waits_for_stays(store: BlockStore) -> None:
    model, tokens = zoo.build("llama"), random_tokens(256, 1)
    cache = TieredPromptCache(store, LoadedModel(KEY, model))
    (following,) = cache.followers(KEY, tokens[:0], 0)
    flight = cache.flight(KEY, tokens, 0, [])
    assert flight is not None
    assert cache.worth_waiting(KEY, as_tokens([*tokens[:200], 1, 2, 3]))
    live = make_prompt_cache(model)
    feed(model, live, tokens)
    following.caches(tokens, live, keep=False)
    flight.end()
    assert store.flush(60)
    # Whole blocks of what the two have in common.
    cache.fetch_nearest_cache(KEY, [*tokens[:200], 1, 2, 3])
    assert cache.last is not None
    assert (cache.last.restored_tokens, cache.last.cold_tokens) == (192, 0)
    assert store.stats().hot.let_go_pages > 0
    following.close()
