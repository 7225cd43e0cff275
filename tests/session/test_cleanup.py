"""However a session ends, what it held is freed; the blocks that it passed on stay stored."""

import gc
import threading
from typing import Any

import pytest

from kit import zoo
from kit.drive import feed, prefill, random_tokens, request, run, same
from kit.examples import some
from omlx_cache import BlockStore, PrefixCache

PROMPT = random_tokens(150, 1)


@pytest.fixture(params=some(["llama", "gemma3_text", "qwen3_next", "mamba2"], "qwen3_next"))
def model(request: pytest.FixtureRequest) -> Any:
    """One family of each kind of layer group."""
    return zoo.build(request.param)


def live(store: BlockStore) -> tuple[int, int, int]:
    stats = store.stats()
    return stats.requests.live_sessions, stats.snapshots.live, stats.snapshots.live_bytes


def assert_nothing_left(store: BlockStore) -> None:
    assert live(store) == (0, 0, 0)
    store.hot.check_integrity()
    assert store.stats().hot.nbytes == sum(e.meta.nbytes for e in store.hot.entries())


WHOLE_BLOCKS = 128
"""What is stored of the prompt before its last, partial block, of 32 tokens a block."""


def test_what_was_prefilled_is_found_again_without_a_commit(model: Any, cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        turn = prefill(model, session, 32)
        assert live(cache.store)[0] == 1
    assert_nothing_left(cache.store)
    again = request(model, cache, PROMPT)
    assert again.cached >= WHOLE_BLOCKS
    fed = [token for step in turn.steps for token in step][: again.cached]
    lead = [step for step in turn.steps if step[-1:] and len(step) > 1]
    whole = [step for step in lead if sum(map(len, lead[: lead.index(step) + 1])) <= len(fed)]
    rest = fed[sum(map(len, whole)) :]
    assert same(again.logits, run(model, [*whole, *([rest] if rest else []), *again.steps]))


def test_blocks_are_stored_while_the_prompt_is_prefilled(model: Any, cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        found = []
        for chunk in session.prefill_chunks(32):
            feed(model, session.prompt_cache, chunk)
            found.append(cache.store.stats().requests.stored_pages)
        found.append(cache.store.stats().requests.stored_pages)
        paged = any(entry.meta.group == "paged" for entry in cache.store.hot.entries())
        assert found[0] == 0
        assert len(set(found)) >= (5 if paged else 2)
        assert session.commit().pages == cache.store.stats().requests.stored_pages


def test_the_record_of_a_session_that_was_lost_ends(cache: PrefixCache) -> None:
    session = cache.session(PROMPT)
    (record,) = cache.store.requests.records()
    assert record.total_seconds is None
    del session
    gc.collect()
    cache.store.stats()
    (record,) = cache.store.requests.records()
    assert record.total_seconds is not None


def test_abort_from_another_thread_in_mid_prefill(model: Any, cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        fed = 0
        for index, chunk in enumerate(session.prefill_chunks(32)):
            feed(model, session.prompt_cache, chunk)
            fed += len(chunk)
            if index == 2:
                thread = threading.Thread(target=session.abort)
                thread.start()
                thread.join()
                assert live(cache.store) == (0, 0, 0)
                stored = cache.store.stats().requests.stored_pages
        assert fed == len(PROMPT)
        session.append(1)
        assert live(cache.store) == (0, 0, 0)
        assert session.commit().pages == 0
    assert_nothing_left(cache.store)
    assert cache.store.stats().requests.stored_pages == stored
