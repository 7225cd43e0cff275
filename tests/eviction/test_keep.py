"""What `Keep` learns, and what it holds for that."""

import sys
import tracemalloc
from collections.abc import Iterable

import pytest

from kit.storage import Story
from omlx_cache_storage.eviction.ages import Ages, worth_waiting_until
from omlx_cache_storage.eviction.keep import (
    ENOUGH_USES,
    GHOST_SECONDS,
    MOST_PATIENCE_SECONDS,
    SLOTS,
    STAMPS_A_REQUEST,
    SUPERSEDED_NS,
    Ghosts,
    Keep,
)
from omlx_cache_storage.format.names import PageName, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PAGED, PageId
from omlx_cache_storage.table import PageTable, Record

SECOND = 10**9
START = 10**18


class Agents:
    """Sequences of pages in a table, each used again after a gap."""

    def __init__(self, policy: Keep) -> None:
        self.policy, self.now = policy, START
        self.stamps: dict[object, int] = {}

    def use(self, who: object, pages: int = 40, *, used: bool = True) -> None:
        before = self.stamps.get(who)
        if before is None:
            self.policy.wanted([], self.now)
            self.policy.added(self.now, pages)
        else:
            self.policy.moved(before, self.now, pages, used=used)
        self.stamps[who] = self.now

    def loop(self, gaps: Iterable[float]) -> None:
        """One sequence comes back after each gap."""
        for gap in gaps:
            self.now += int(gap * SECOND)
            self.use("one")

    @property
    def patience(self) -> float:
        return self.policy.patience_ns / SECOND


def test_there_is_no_patience_before_enough_was_seen() -> None:
    agents = Agents(Keep())
    agents.loop([20.0] * (ENOUGH_USES // 40))
    assert agents.patience == 0
    agents.loop([20.0] * 20)
    assert 20 <= agents.patience < 30


def test_quick_uses_do_not_take_the_patience_that_slow_ones_need() -> None:
    # Most come back after two seconds, the others after half a minute: of a page that has waited
    # for five seconds more can be expected than of one that has just come.
    agents = Agents(Keep())
    agents.loop([2.0, 30.0] * 150)
    assert agents.patience >= 2
    slow = Agents(Keep())
    slow.loop([30.0, 30.0, 30.0, 0.3] * 100)
    assert 30 <= slow.patience < 45


def test_another_habit_is_learned() -> None:
    agents = Agents(Keep())
    agents.loop([20.0] * 500)
    assert agents.patience >= 20
    agents.loop([4.0] * 500)
    assert 4 <= agents.patience < 7
    agents.loop([20.0] * 500)
    assert 20 <= agents.patience < 30


def test_hours_that_pass_once_leave_no_patience_of_hours() -> None:
    agents = Agents(Keep())
    agents.loop([20.0] * 300)
    agents.loop([8 * 3600.0])
    agents.loop([20.0] * 40)
    assert 20 <= agents.patience < 30


def test_no_patience_is_longer_than_refused_pages_are_remembered() -> None:
    agents = Agents(Keep())
    agents.loop([3600.0] * 200)
    assert agents.patience == MOST_PATIENCE_SECONDS <= GHOST_SECONDS


def test_what_was_superseded_says_nothing_of_gaps() -> None:
    agents = Agents(Keep())
    agents.loop([20.0] * 100)
    seen = agents.policy.learned()
    for _ in range(40):
        agents.now += 20 * SECOND
        agents.policy.moved(agents.stamps["one"], SUPERSEDED_NS, 40, used=False)
        agents.policy.moved(SUPERSEDED_NS, agents.now, 40, used=True)
        agents.stamps["one"] = agents.now
    now = agents.policy.learned()
    assert seen is not None
    assert now is not None
    assert now.seen == seen.seen


def test_a_pinned_page_is_used_when_its_pin_has_ended_and_not_before() -> None:
    policy = Keep()
    policy.added(START, 10)
    until = START + 3600 * SECOND
    policy.moved(START, until, 10, used=False)
    policy.moved(until, START + 5 * SECOND, 10, used=True)
    assert policy.learned() is None
    policy.moved(START + 5 * SECOND, START + 8 * SECOND, 10, used=True)
    learned = policy.learned()
    assert learned is not None
    assert learned.seen == 10


def test_nothing_is_held_of_pages_that_have_left_long_ago() -> None:
    policy = Keep()
    table: PageTable[Record] = PageTable(policy)
    story = Story(blocks=400)
    now = START
    for round_ in range(300):
        now += 10 * SECOND
        pages = story.ids(*range(1 + round_, 9 + round_))
        table.touch(pages, now, used=True)
        policy.shifted(now + 1, now)
        for page in pages:
            if page not in table:
                name = PageName(page, b"\0" * 8, 16, 16, False)
                table.add(Record(StoredPage(story.namespace, name, 1)), now + 1)
        for page in pages[:2]:
            if page in table:
                table.pop(page)
        assert sum(policy._here.values()) == len(table)
        # Two stamps a request, for ten minutes and until the next look.
        assert len(policy._shifted) <= 2 * (GHOST_SECONDS / 10 + 20)
    for page in list(table):
        table.pop(page)
    assert not policy._here
    for _ in range(32):
        now += 300 * SECOND
        policy.wanted([], now)
    assert not policy._here
    assert not policy._shifted


def test_a_page_and_a_ghost_cost_64_bytes_at_most_even_in_uses_of_a_few_pages() -> None:
    count, together = 20_000, 5
    ids = [PageId(BlockKey(n.to_bytes(32, "big")), PAGED) for n in range(count)]
    hash_once = [hash(page) for page in ids]
    tracemalloc.start()
    try:
        policy = Keep()
        table_bytes = tracemalloc.get_traced_memory()[0]
        for at, page in enumerate(ids):
            policy.added(START + at // together)
            policy.left(page, START + at // together)
        ghost_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(hash_once) == count
    # What a use holds for ten minutes is an int and an entry of a dictionary.
    assert table_bytes / SLOTS + (ghost_bytes - table_bytes) / count <= 64


def test_pages_of_one_use_share_what_is_held() -> None:
    policy = Keep()
    policy.added(START, 1_000_000)
    assert len(policy._here) == 1
    assert sys.getsizeof(policy._here) < 1024


def test_ghosts_are_bounded_and_one_slot_has_the_latest() -> None:
    ghosts = Ghosts(slots=1)
    first, second = Story(blocks=2).ids(1, 2)
    ghosts.add(first, 5)
    ghosts.add(second, 6)
    ghosts.add(second, 8)
    assert (ghosts.since(8), ghosts.since(9)) == ({8: 1}, {})
    assert ghosts.take((first, second, second)) == {8: 1}


def test_who_comes_back_though_it_was_refused_is_counted_and_after_long_it_is_somebody_new() -> (
    None
):
    page = Story().id(1)
    for gap, counted in ((30, True), (GHOST_SECONDS - 1, True), (GHOST_SECONDS + 1, False)):
        policy = Keep()
        policy.wanted([page], START)
        policy.refused([page], START)
        policy.wanted([page], START + int(gap * SECOND))
        assert (policy.learned() is not None) is counted


def test_learning_goes_through_many_stamps_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []

    def until(uses: Ages, waiting: Ages, share: float) -> int:
        learned.append(round(sum(waiting)))
        return worth_waiting_until(uses, waiting, share)

    monkeypatch.setattr("omlx_cache_storage.eviction.keep.worth_waiting_until", until)
    agents, many = Agents(Keep()), 64 * STAMPS_A_REQUEST
    agents.loop([20.0] * (ENOUGH_USES // 40 + 20))
    for number in range(many):
        agents.policy.added(START - SECOND * number)
    learned.clear()
    agents.loop([20.0] * 256)
    assert len(learned) == 4
    assert min(learned) >= many
