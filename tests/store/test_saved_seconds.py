"""What was saved, in real stores: every loop is measured."""

from typing import Any

import mlx.core as mx
import pytest

from kit import zoo
from omlx_cache import BlockStore, CacheSettings, PrefixCache

BLOCK = 32
PROMPT = [(7 * i * i + 3) % 250 for i in range(400)]


@pytest.fixture(scope="module")
def model() -> Any:
    return zoo.build("qwen3")


def _own_loop(model: Any, cache: PrefixCache, tokens: list[int], step: int = 200) -> None:
    """A scheduler's loop: `next_stop`, the model, `checkpoint`."""
    with cache.session(tokens) as session:
        done = session.cached_tokens
        while count := session.next_stop(step):
            model(mx.array([tokens[done : done + count]]), cache=session.prompt_cache)
            session.evaluate()
            done += count
            session.checkpoint(done)
        session.commit()


def test_a_loop_on_next_stop_is_measured_token_by_token(model: Any) -> None:
    settings = CacheSettings(hot_cache_only=True, socket="off", block_size=BLOCK)
    with BlockStore(settings) as store:
        cache = PrefixCache(model, store, model_id="tiny")
        _own_loop(model, cache, PROMPT)
        first = store.stats().requests
        assert first.prefilled_tokens == len(PROMPT)
        assert 0 < first.prefill_seconds < store.stats().uptime_seconds
        (rate,) = first.prefill_tokens_per_second.values()
        assert list(first.prefill_tokens_per_second) == ["tiny"]
        assert rate == pytest.approx(len(PROMPT) / first.prefill_seconds)
        _own_loop(model, cache, PROMPT)
        again = store.stats().requests
        restored = again.restored_tokens
        assert restored == len(PROMPT) - 1
        assert again.prefilled_tokens == len(PROMPT) + 1
        assert again.saved_seconds == pytest.approx(restored / rate - again.restore_seconds)
        records = store.requests.records()
        assert [record.computed_tokens for record in records] == [len(PROMPT), 1]
