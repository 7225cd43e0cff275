"""Hints that a scheduler gives with a request: they move its pages in the eviction order only."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from kit.drive import prefill, random_tokens, request, run, same
from kit.examples import some
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.eviction.order import PRIORITY_SECONDS
from omlx_cache_storage.hot import HotTier

SHARED = random_tokens(96, 1)
MINE = SHARED + random_tokens(64, 2)
THEIRS = SHARED + random_tokens(64, 3)
PATIENCE_SECONDS = 25


def ages(store: BlockStore) -> dict[int, set[int]]:
    """Return, by position, how many seconds ago pages of memory count as used."""
    found: dict[int, set[int]] = {}
    now = time.time_ns()
    for entry in store.hot.entries():
        found.setdefault(entry.meta.position, set()).add(round((now - entry.stamp_ns) / 6e10))
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HotTier, "patience_ns", PATIENCE_SECONDS * 1_000_000_000)


def test_what_a_low_priority_uses_counts_as_used_ten_minutes_ago(
    model: Any, cache: PrefixCache
) -> None:
    request(model, cache, MINE, priority="low")
    assert set().union(*ages(cache.store).values()) == {PRIORITY_SECONDS // 60}
    # And it makes nothing older than others have left it.
    request(model, cache, THEIRS)
    request(model, cache, MINE, priority="low")
    assert ages(cache.store)[96] == {0}


def test_what_a_high_priority_uses_stays_younger_whoever_uses_it_next(
    model: Any, cache: PrefixCache
) -> None:
    request(model, cache, MINE, priority="high")
    request(model, cache, THEIRS)
    found = ages(cache.store)
    assert found[96] == {-PRIORITY_SECONDS // 60}
    assert found[160] == {-PRIORITY_SECONDS // 60, 0}


def test_hints_that_are_none_are_counted_and_change_nothing(model: Any, cache: PrefixCache) -> None:
    with cache.session(MINE, priority="urgent") as session:
        prefill(model, session, 64)
        assert session.commit(ended="done").pages > 0
    assert set().union(*ages(cache.store).values()) == {0}
    for ttl in ("soon", -1, True, float("nan"), None):
        assert cache.pin(MINE, ttl=ttl).memory.pages == 0
    assert cache.pin(MINE, ttl=10**400).found_tokens > 0, "a time, and a long one"
    assert cache.pin(["a"], ttl=1.0).memory.pages == 0
    assert cache.retire([2**70]) == 0
    assert cache.store.stats().requests.ignored_hints == 9
    assert cache.store.stats().to_dict()["requests"]["ignored_hints"] == 9


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("ended", [None, "tool_call", "length", "cancelled"])
def test_only_a_turn_that_is_over_goes_without_protection(
    ended: str | None, model: Any, cache: PrefixCache
) -> None:
    def commit(tokens: list[int], how: str | None) -> None:
        with cache.session(tokens) as session:
            prefill(model, session, 64)
            session.commit(ended=how)

    def youngest() -> float:
        latest = max(entry.stamp_ns for entry in cache.store.hot.entries())
        return (time.time_ns() - latest) / 1e9

    commit(MINE, ended)
    assert youngest() < PATIENCE_SECONDS
    cache.clear()
    commit(MINE, "turn")
    assert youngest() > PATIENCE_SECONDS
    # Asked for again, it is one that is used now.
    commit(MINE, "tool_call")
    assert youngest() < PATIENCE_SECONDS


@pytest.mark.usefixtures("patient")
def test_a_turn_that_is_over_takes_nothing_from_who_used_the_same_meanwhile(
    model: Any, cache: PrefixCache
) -> None:
    with cache.session(MINE) as session:
        prefill(model, session, 64)
        request(model, cache, THEIRS)
        session.commit(ended="turn")
    now = time.time_ns()
    young = {e.meta.position for e in cache.store.hot.entries() if now - e.stamp_ns < 2e10}
    assert young == {32, 64, 96, 128, 160}
    old = {e.meta.position for e in cache.store.hot.entries() if now - e.stamp_ns > 2e10}
    assert old == {128, 160}


@pytest.mark.parametrize(
    "model", some(["llama", "gemma3_text", "qwen3_next"], "gemma3_text"), indirect=True
)
def test_a_conversation_that_is_over_leaves_first_and_what_others_go_on_from_stays(
    model: Any, cache: PrefixCache
) -> None:
    theirs = request(model, cache, THEIRS)
    mine = request(model, cache, MINE, new=40)
    assert cache.retire([*MINE, *mine.answer]) == 96
    order = [(e.stamp_ns <= SUPERSEDED_NS, e.meta.position) for e in cache.store.hot.entries()]
    demoted = [position for first, position in order if first]
    assert demoted
    assert min(demoted) > 96
    assert order == sorted(order, key=lambda page: not page[0])
    assert demoted == sorted(demoted, reverse=True)
    # They are as good as ever to who asks for them again.
    again = request(model, cache, [*MINE, *mine.answer, 7])
    assert again.cached == len(MINE) + len(mine.answer)
    blocks = [e for e in cache.store.hot.entries() if e.meta.group == "paged" and not e.meta.tail]
    assert not any(entry.stamp_ns <= SUPERSEDED_NS for entry in blocks)
    assert theirs.cached == 0


def test_all_of_a_conversation_that_nobody_shares_leaves_first(
    model: Any, cache: PrefixCache
) -> None:
    request(model, cache, MINE)
    assert cache.retire(MINE, salt="other") == 0
    assert not any(entry.stamp_ns <= SUPERSEDED_NS for entry in cache.store.hot.entries())
    assert cache.retire(MINE) == 0
    assert all(entry.stamp_ns <= SUPERSEDED_NS for entry in cache.store.hot.entries())
    cold = cache.store.cold
    assert cache.store.flush()
    assert all(entry.used_ns <= SUPERSEDED_NS for entry in cold.listing())


def test_what_is_computed_now_is_not_retired(model: Any, cache: PrefixCache) -> None:
    request(model, cache, MINE)
    with cache.session(THEIRS):
        assert cache.retire(MINE) == 96


def test_pins_beyond_half_of_memory_say_what_they_took_and_the_cache_goes_on(
    model: Any, open_store: Callable[..., BlockStore], cache: PrefixCache
) -> None:
    request(model, cache, SHARED)
    page = cache.store.stats().hot.nbytes // 3
    long = random_tokens(10 * 32, 9)
    cache = PrefixCache(model, open_store(hot_cache_only=True, hot_bytes=12 * page))
    request(model, cache, long)
    pin = cache.pin(long, ttl=600)
    assert pin.memory.found_pages == 10
    assert 4 <= pin.memory.pages <= 6
    assert pin.memory.nbytes <= 6 * page
    assert pin.reason == (
        f"all pins together take half of memory at most: {pin.memory.pages} of 10 pages are "
        "pinned there"
    )
    turn = request(model, cache, MINE)
    assert cache.lookup([*MINE, 1]).cached_tokens == 160
    assert same(turn.logits, run(model, turn.steps))
    assert cache.lookup([*long, 1]).cached_tokens >= 32 * pin.memory.pages


@pytest.mark.parametrize("priority", ["low", "normal", "high"])
def test_what_is_read_from_the_disk_has_the_stamp_of_who_asked_for_it(
    priority: str, model: Any, open_store: Callable[..., BlockStore]
) -> None:
    request(model, PrefixCache(model, open_store()), MINE)
    cache = PrefixCache(model, open_store())
    with cache.session([*MINE, 1], priority=priority) as session:
        assert session.cached_cold_tokens == 160
    entries = cache.store.hot.entries()
    assert [entry.meta.position for entry in entries] == [160, 128, 96, 64, 32]
    assert len({entry.stamp_ns for entry in entries}) == 1
    minutes = {"low": 10, "normal": 0, "high": -10}[priority]
    assert set().union(*ages(cache.store).values()) == {minutes}


def test_a_pin_of_less_than_a_block_says_why_it_pins_nothing(cache: PrefixCache) -> None:
    pin = cache.pin(MINE[:5], ttl=60)
    assert pin.memory.pages == pin.found_tokens == 0
    assert "give at least 32 tokens, a block; it has 5" in str(pin.reason)
    assert cache.pin(MINE[:32], ttl=60).reason is None
