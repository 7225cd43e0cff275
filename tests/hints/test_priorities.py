"""Whose pages push out whose, in one hot tier and in virtual time."""

from kit.storage import Story
from kit.units import SECOND
from omlx_cache.simulate.tiers import VirtualClock
from omlx_cache_storage.eviction.keep import Keep
from omlx_cache_storage.eviction.order import PRIORITY_SECONDS, Priority
from omlx_cache_storage.hot_page import WRITE_POLICIES
from omlx_cache_storage.tiers import Tiers

BLOCK, ROOM = 256, 6
START_NS = 1_000_000 * SECOND


class Shelf:
    """A tier with room for six pages, and stories whose pages are put into it."""

    def __init__(self) -> None:
        self.now = START_NS
        self.clock = VirtualClock(START_NS)
        self.tiers = Tiers(
            hot_bytes=ROOM * BLOCK,
            queue_bytes=BLOCK,
            policy=WRITE_POLICIES["through"],
            clock=self.clock,
            cold=None,
            documents=lambda digest: {},
            eviction=Keep(),
        )
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)
        self.clock.set(self.now)

    def put(self, story: Story, *numbers: int, priority: Priority = "normal") -> int:
        """Store pages until one has no room; return how many."""
        stamp = self.tiers.stamp(priority)
        own = set(story.ids(*numbers))
        for stored, page in enumerate(story.pages(*numbers)):
            position = page.meta.position
            room = self.tiers.admit(BLOCK, own, position=position, priority=priority)
            if not room:
                return stored
            self.tiers.put(page, room, stamp)
        return len(numbers)

    def held(self, story: Story) -> int:
        return sum(self.tiers.held(story.id(number)) is not None for number in range(1, 20))


def story(name: str) -> Story:
    return Story(name, nbytes=BLOCK)


def test_a_low_priority_pushes_out_only_what_nobody_used_for_ten_minutes() -> None:
    shelf, others, mine = Shelf(), story("others"), story("mine")
    assert shelf.put(others, 1, 2, 3, 4, 5, 6) == 6
    shelf.sleep(PRIORITY_SECONDS - 1)
    assert shelf.put(mine, 1, priority="low") == 0
    shelf.sleep(2)
    assert shelf.put(mine, 1, 2, priority="low") == 2
    assert shelf.held(others) == 4


def test_a_low_priority_leaves_before_what_is_as_old() -> None:
    shelf, others, mine, new = Shelf(), story("others"), story("mine"), story("new")
    shelf.put(others, 1, 2, 3)
    shelf.sleep(60)
    shelf.put(mine, 1, 2, 3, priority="low")
    shelf.sleep(60)
    assert shelf.put(new, 1, 2) == 2
    assert (shelf.held(others), shelf.held(mine), shelf.held(new)) == (3, 1, 2)


def test_what_a_high_priority_uses_stays_for_ten_minutes_but_for_others_of_its_kind() -> None:
    shelf, others, mine, more = Shelf(), story("others"), story("mine"), story("more")
    assert shelf.put(mine, 1, 2, 3, 4, priority="high") == 4
    shelf.sleep(PRIORITY_SECONDS - 1)
    # The others share what is left.
    for number in range(1, 9):
        assert shelf.put(others, number) == 1
    assert shelf.held(mine) == 4
    assert shelf.put(more, 1, 2, 3, priority="high") == 3
    assert (shelf.held(mine), shelf.held(others)) == (3, 0)
    shelf.sleep(PRIORITY_SECONDS)
    assert shelf.put(others, *range(1, 6)) == 3


def test_a_tier_full_of_high_priorities_refuses_others_and_no_longer_than_ten_minutes() -> None:
    shelf, others, mine = Shelf(), story("others"), story("mine")
    assert shelf.put(mine, *range(1, 7), priority="high") == 6
    assert shelf.put(others, 1) == 0
    shelf.sleep(PRIORITY_SECONDS + 1)
    assert shelf.put(others, 1, 2) == 2
