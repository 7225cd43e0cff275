"""Look-ups, prefetches, begun restores, pins and `clear`: where a prefix lies, read ahead, kept,
deleted. None of them reads a payload on the caller's thread but where it says so."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.arithmetic import HYBRID, Arithmetic, tokens_of
from contract.driving import BLOCK, SLACK, ask, pages
from omlx_cache import BlockStore, PrefixCache

Open = Callable[..., BlockStore]
TOKENS = tokens_of(1, 3 * BLOCK + 5)


def test_a_lookup_says_where_each_page_lies(open_store: Open) -> None:
    model, store = Arithmetic(), open_store()
    cache = PrefixCache(model, store)
    nothing = cache.lookup(TOKENS)
    assert (nothing.cached_tokens, nothing.matched_tokens, nothing.pages) == (0, 0, ())
    assert nothing.miss_reason == "absent"
    ask(model, cache, TOKENS)
    found = cache.lookup(TOKENS)
    assert (found.cached_tokens, found.miss_reason) == (len(TOKENS) - 1, None)
    assert [(page.start, page.stop) for page in found.pages] == [
        (0, 32), (32, 64), (64, 96), (96, 101),
    ]  # fmt: skip
    assert {page.tier for page in found.pages} <= {"hot", "pending"}
    assert store.flush(30)
    found = cache.lookup(TOKENS)
    assert {page.tier for page in found.pages} == {"hot"}
    assert {page.group for page in found.pages} == {"paged"}
    other = cache.lookup([*TOKENS[:64], 1, 2, 3])
    assert (other.cached_tokens, other.matched_tokens) == (64, 64)
    assert other.pages == found.pages[:2]
    assert store.close()
    store = open_store()
    cold = PrefixCache(model, store).lookup(TOKENS)
    assert {page.tier for page in cold.pages} == {"cold"}
    assert [page.key for page in cold.pages] == [page.key for page in found.pages]
    # A look-up promotes nothing and counts as no request.
    assert store.stats().hot.pages == 0
    assert store.stats().requests.sessions == 0


def test_a_lookup_of_what_are_no_tokens_raises(open_store: Open) -> None:
    cache = PrefixCache(Arithmetic(), open_store())
    for call in (cache.lookup, cache.prefetch):
        with pytest.raises(ValueError, match=r"\w"):
            call(["a", "b"])  # type: ignore[list-item]


def test_a_prefetch_brings_the_pages_into_memory(open_store: Open) -> None:
    model = Arithmetic(HYBRID)
    ask(model, PrefixCache(model, store := open_store()), TOKENS)
    assert store.close()
    store = open_store()
    cache = PrefixCache(model, store)
    handle = cache.prefetch(TOKENS)
    assert handle.wait(SLACK)
    assert {page.tier for page in cache.lookup(TOKENS).pages} == {"hot"}
    assert ask(model, cache, TOKENS).wrong == ""
    cache.prefetch(tokens_of(9, 100)).cancel()


def test_a_begun_restore_is_ready_and_the_session_takes_it(open_store: Open) -> None:
    model = Arithmetic(HYBRID)
    ask(model, PrefixCache(model, store := open_store()), TOKENS)
    assert store.close()
    store = open_store(hot_bytes=0)
    cache = PrefixCache(model, store)
    begun = cache.begin(TOKENS, salt=None)
    assert begun.wait(SLACK)
    assert begun.ready
    turn = ask(model, cache, TOKENS, begun=begun)
    assert (turn.cached, turn.wrong) == (len(TOKENS) - 1, "")
    # One for other tokens, one that was cancelled, and one that nobody takes.
    other = cache.begin(tokens_of(2, 90))
    assert ask(model, cache, TOKENS, begun=other).wrong == ""
    gone = cache.begin(TOKENS)
    gone.cancel()
    turn = ask(model, cache, TOKENS, begun=gone)
    assert turn.wrong == ""
    assert cache.begin(["x"]).ready  # type: ignore[list-item]
    cache.begin(TOKENS)


def test_what_a_pin_keeps_outlives_traffic_of_many_budgets(open_store: Open) -> None:
    model, store = Arithmetic(), open_store(cold_bytes="2MiB", hot_bytes=0)
    cache = PrefixCache(model, store)
    ask(model, cache, TOKENS, salt="kept")
    assert store.flush(30)
    pin = cache.pin(TOKENS, ttl=600, salt="kept")
    assert pin.found_tokens == len(TOKENS)
    for seed in range(2, 50):
        ask(model, cache, tokens_of(seed, 3 * BLOCK))
        assert store.flush(30)
    assert store.stats().cold.evicted_pages > 0  # type: ignore[union-attr]
    turn = ask(model, cache, TOKENS, salt="kept")
    assert (turn.cached, turn.wrong) == (len(TOKENS) - 1, "")
    pin.unpin()
    pin.unpin()
    assert cache.pin(TOKENS, ttl=-1).found_tokens == 0


def test_a_cleared_salt_is_in_no_tier_and_not_found_after_a_restart(
    open_store: Open, directory: Path
) -> None:
    model, store = Arithmetic(HYBRID), open_store()
    cache = PrefixCache(model, store)
    ask(model, cache, TOKENS, salt="a")
    ask(model, cache, TOKENS, salt="b")
    assert store.flush(30)
    files = len(pages(directory))
    gone = cache.clear(salt="a")
    assert gone == files - len(pages(directory)) == files // 2
    assert cache.clear(salt="a") == 0
    assert store.close()
    store = open_store()
    cache = PrefixCache(model, store)
    assert ask(model, cache, TOKENS, salt="a").cached == 0
    assert ask(model, cache, TOKENS, salt="b").cached == len(TOKENS) - 1


def test_stats_are_one_picture_that_json_can_hold(open_store: Open) -> None:
    model, store = Arithmetic(), open_store()
    ask(model, PrefixCache(model, store), TOKENS)
    assert store.flush(30)
    stats = store.stats()
    told = json.loads(json.dumps(stats.to_dict()))
    assert told["hot"]["nbytes"] == stats.hot.nbytes
    assert told["requests"]["sessions"] == 1
    assert stats.cold is not None
    assert stats.writer is not None
    assert stats.cold.pages == 4
    assert stats.cold.state == "ok"
    assert stats.writer.pending_pages == 0
    with pytest.raises(AttributeError):
        stats.hot.pages = 3  # type: ignore[misc]
