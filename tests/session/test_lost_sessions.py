"""Sessions that nobody ends: collected in a cycle under any lock; their blocks stay stored."""

import gc
import threading
from typing import Any

import pytest

from kit.drive import feed, random_tokens
from kit.examples import some
from omlx_cache import PrefixCache
from omlx_cache_storage.keys import KeyChain

PROMPT = random_tokens(320, 1)


@pytest.mark.parametrize("whose", ["counters", "flights", "requests"])
def test_a_session_in_a_cycle_is_collected_while_a_lock_is_held(
    cache: PrefixCache, whose: str
) -> None:
    """The collector runs in whatever thread allocates, also in one that holds a lock."""
    lock = {
        "counters": cache.store.counters._lock,
        "flights": cache.store.flights.lock,
        "requests": cache.store.requests.lock,
    }[whose]
    cycle: list[object] = [cache.session(PROMPT)]
    cycle.append(cycle)
    collected = threading.Event()
    del cycle

    def collect() -> None:
        with lock:
            gc.collect()
        collected.set()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    assert collected.wait(10)
    thread.join()
    assert cache.store.stats().requests.live_sessions == 0
    assert cache.store.stats().snapshots.live_bytes == 0


def test_nothing_remembers_the_keys_of_a_session_that_ended(cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        assert next(session.prefill_chunks(64))
    del session
    gc.collect()
    chains = [one for one in gc.get_objects() if isinstance(one, KeyChain)]
    assert not [chain for chain in chains if chain.tokens[:320].tolist() == PROMPT]
    assert not cache.store.flights.live


def test_the_record_of_a_session_that_was_lost_ends(cache: PrefixCache) -> None:
    session = cache.session(PROMPT)
    (record,) = cache.store.requests.records()
    assert record.total_seconds is None
    del session
    gc.collect()
    cache.store.stats()
    (record,) = cache.store.requests.records()
    assert record.total_seconds is not None


@pytest.mark.parametrize(
    "model", some(["llama", "gemma3_text", "qwen3_next", "mamba2"], "qwen3_next"), indirect=True
)
def test_blocks_are_stored_while_the_prompt_is_prefilled(model: Any, cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        found = []
        for chunk in session.prefill_chunks(64):
            feed(model, session.prompt_cache, chunk)
            found.append(cache.store.stats().requests.stored_pages)
        found.append(cache.store.stats().requests.stored_pages)
        paged = any(entry.meta.group == "paged" for entry in cache.store.hot.entries())
        assert found[0] == 0
        assert len(set(found)) >= (5 if paged else 2)
        assert session.commit().pages == cache.store.stats().requests.stored_pages
