"""What `Keep` learns, and what it holds for that."""

import sys
from collections.abc import Iterable

from kit.storage import Story
from omlx_cache_storage.eviction.keep import (
    GHOST_SECONDS,
    SUPERSEDED_NS,
    Ghosts,
    Keep,
)

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
