"""What `Tier` promises, on every tier: hot with bytes, hot with live arrays, cold on a disk, cold
on a disk that another process writes to as well."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import pytest

from kit.storage import Story, bytes_of, disk_usage, expected_payload, open_cold, read_cold
from omlx_cache.control.listing import ListedPage, list_pages
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import Clock
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import Page, PageId, Tail
from omlx_cache_storage.tiers import Tier

KIB = 1024
PAGE = 128 * KIB


class AnyTier(Protocol):
    """A tier, and how pages get into it and out of it: the one thing that tiers do differently."""

    tier: Tier

    def put(self, page: Page) -> bool: ...
    def get(self, page: PageId) -> bytes: ...
    def listed(self) -> list[ListedPage]:
        """Return its pages in the order of eviction."""
        ...

    def measured(self) -> int:
        """Return the bytes that it takes, as seen from outside."""
        ...


class _Hot:
    def __init__(self, pages: int, live: bool) -> None:
        self.tier: Tier
        self.tier = self._hot = HotTier(pages * PAGE)
        self.live = live

    def put(self, page: Page) -> bool:
        room = self._hot.reserve(page.meta.nbytes)
        if not room:
            return False
        payload: Any = page.payload
        if self.live:
            payload = mx.array(bytearray(page.payload), dtype=mx.uint8)
            mx.eval(payload)
        self._hot.put(Page(page.meta, payload), room, dirty=False)
        return True

    def get(self, page: PageId) -> bytes:
        found = self._hot.get(page)
        return bytes_of(found)

    def listed(self) -> list[ListedPage]:
        return list_pages(self._hot.entries(), ())

    def measured(self) -> int:
        return sum(held.nbytes for held in self._hot.entries())


class _Backing:
    def __init__(self, pages: int, directory: Path) -> None:
        # Header, blocks and a shard directory for each page; what lies beside pages in the
        # directory and in three namespaces; room for a write.
        limit = pages * (PAGE + 24 * KIB) + 96 * KIB
        self.clock = Clock()
        cold = open_cold(directory, limit, clock=self.clock)
        self.tier: Tier
        self.tier = self._cold = cold

    def put(self, page: Page) -> bool:
        return self._cold.write(page, self.clock.now(), {"model": "m"}) in ("written", "present")

    def get(self, page: PageId) -> bytes:
        return read_cold(self._cold, page)

    def listed(self) -> list[ListedPage]:
        return list_pages((), self._cold.entries())

    def measured(self) -> int:
        return disk_usage(self._cold.directory)


class _Shared(_Backing):
    """A tier of one process, into which another one's puts every second page."""

    def __init__(self, pages: int, directory: Path) -> None:
        super().__init__(pages, directory)
        self._other = ColdTier(directory, self._cold.limit_bytes, clock=self.clock)
        self._other.open()
        self._turn = 0

    def put(self, page: Page) -> bool:
        self._turn += 1
        writer = self._other if self._turn % 2 else self._cold
        # What the one knows of recency the other asks the files.
        self._cold.settle()
        result = writer.write(page, self.clock.now(), {"model": "m"})
        self._cold.refresh()
        return result in ("written", "present")


Make = Callable[[int], AnyTier]
_KINDS = ["hot with bytes", "hot with arrays", "cold", "cold, shared"]


@pytest.fixture(params=_KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a tier with room for so many pages of this module's size."""
    return _make(request.param, tmp_path)


def _make(kind: str, directory: Path) -> Make:
    if kind == "cold":
        return lambda pages: _Backing(pages, directory / "cold")
    if kind == "cold, shared":
        return lambda pages: _Shared(pages, directory / "cold")
    return lambda pages: _Hot(pages, kind == "hot with arrays")


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _fill(tested: AnyTier, story: Story, *numbers: int) -> None:
    for page in story.pages(*numbers):
        assert tested.put(page)
    tested.tier.touch(story.ids(*numbers))


def _order(tested: AnyTier) -> list[PageId]:
    return [listed.page for listed in tested.listed()]


def _numbers(tested: AnyTier, story: Story) -> list[int]:
    known = {story.id(number): number for number in range(1, 30)}
    return [known[page] for page in _order(tested)]


def test_what_is_put_is_got(make: Make, story: Story) -> None:
    tested = make(4)
    assert tested.tier.info(story.id(1)) is None
    _fill(tested, story, 1, 2, 3)
    for number in (1, 2, 3):
        page = story.page(number)
        assert tested.get(page.meta.id) == page.payload == expected_payload(page.meta.id, PAGE)
        info = tested.tier.info(page.meta.id)
        assert (info.position, info.held) == (number * 16, 16)
        assert info.nbytes >= PAGE
    tested.tier.check_integrity()


def test_pages_of_groups_under_one_key_are_apart(make: Make, story: Story) -> None:
    tested = make(4)
    for group in ("paged", "window64keep0", "state"):
        assert tested.put(story.page(1, group=group))
    for group in ("paged", "window64keep0", "state"):
        page = story.page(1, group=group)
        assert tested.get(page.meta.id) == page.payload
    tested.tier.check_integrity()


def test_a_page_that_holds_more_replaces_one_that_holds_less(make: Make, story: Story) -> None:
    tested = make(4)
    for held, expected in ((8, 8), (16, 16), (8, 16)):
        assert tested.put(story.page(1, held=held))
        info = tested.tier.info(story.id(1))
        assert info.held == expected
        assert tested.get(story.id(1)) == expected_payload(story.id(1), PAGE)
        tested.tier.check_integrity()
    assert _order(tested) == [story.id(1)]


def test_a_page_that_ends_inside_a_block_is_found_by_its_parent(make: Make, story: Story) -> None:
    tested = make(4)
    _fill(tested, story, 1, 2)
    tail = story.page(2, tail=5)
    assert tested.put(tail)
    assert tested.tier.tails_of([tail.meta.parent]) == {Tail(tail.meta.position, "paged")}
    assert tested.tier.tails_of([story.id(7).key]) == set()
    assert tested.tier.discard([tail.meta.id]) == 1
    assert tested.tier.tails_of([tail.meta.parent]) == set()


def test_many_pages_are_asked_for_at_once_and_told_in_order(make: Make, story: Story) -> None:
    tested = make(4)
    _fill(tested, story, 1, 3)
    tail = story.page(4, tail=5)
    assert tested.put(tail)
    asked = [*story.ids(3, 2, 1), tail.meta.id]
    told = list(tested.tier.find_all(asked))
    assert told == [tested.tier.info(page) for page in asked]
    assert told[1] is None
    parents = [*story.ids(1, 2, 3), PageId(tail.meta.parent, "paged")]
    assert set(tested.tier.tails_of([page.key for page in parents])) == {
        Tail(tail.meta.position, "paged")
    }


def test_a_listing_says_where_pages_are_and_how_much_they_hold(make: Make, story: Story) -> None:
    tested = make(4)
    _fill(tested, story, 1, 2)
    entries = {listed.page: listed for listed in tested.listed()}
    for page in story.ids(1, 2):
        info, one = tested.tier.info(page), entries[page]
        assert (info, one.tiers) == (one.info, (one.info.tier,))
    assert {entry.namespace for entry in entries.values()} == {story.page(1).meta.namespace}
    assert len({entry.used_ns for entry in entries.values()}) == 1
    usage = tested.tier.usage()
    assert (usage.pages, usage.evicted_pages) == (2, 0)


def test_a_discarded_page_is_gone_and_its_bytes_too(make: Make, story: Story) -> None:
    tested = make(4)
    _fill(tested, story, 1)
    before = tested.tier.usage().nbytes
    _fill(tested, story, 2)
    assert tested.tier.discard(story.ids(2, 9)) == 1
    assert tested.tier.discard(story.ids(2)) == 0
    assert tested.tier.info(story.id(2)) is None
    assert _order(tested) == [story.id(1)]
    assert tested.tier.usage().nbytes == before
    tested.tier.check_integrity()


def test_a_chain_loses_its_tail_before_its_root(make: Make, story: Story) -> None:
    tested = make(4)
    _fill(tested, story, 1, 2, 3, 4)
    assert tested.put(Story("other", nbytes=PAGE).page(1))
    assert tested.put(Story("third", nbytes=PAGE).page(1))
    assert [n for n in (1, 2, 3, 4) if tested.tier.info(story.id(n)) is not None] == [1, 2]
    tested.tier.check_integrity()


def test_the_chain_that_was_not_used_leaves_first(make: Make, story: Story) -> None:
    tested = make(4)
    other = Story("other", nbytes=PAGE)
    _fill(tested, story, 1, 2)
    _fill(tested, other, 1, 2)
    tested.tier.touch(story.ids(1, 2))
    assert tested.put(Story("third", nbytes=PAGE).page(1))
    assert [tested.tier.info(page) is not None for page in story.ids(1, 2)] == [True, True]
    assert [tested.tier.info(page) is not None for page in other.ids(1, 2)] == [True, False]


def test_a_touch_is_by_depth_whatever_order_it_names(make: Make, story: Story) -> None:
    tested = make(4)
    _fill(tested, story, 1, 2, 3, 4)
    tested.tier.touch(story.ids(3, 1, 4, 2))
    assert _numbers(tested, story) == [4, 3, 2, 1]


def test_superseded_pages_leave_before_all_others(make: Make, story: Story) -> None:
    tested = make(4)
    _fill(tested, story, 1, 2, 3, 4)
    tested.tier.demote(story.ids(1, 2))
    assert _numbers(tested, story) == [2, 1, 4, 3]
    tested.tier.demote(story.ids(3))
    assert _numbers(tested, story) == [3, 2, 1, 4]
    tested.tier.touch(story.ids(1))
    assert _numbers(tested, story) == [3, 2, 4, 1]


def test_a_page_larger_than_the_tier_is_refused_and_evicts_nothing(
    make: Make, story: Story
) -> None:
    tested = make(2)
    _fill(tested, story, 1, 2)
    assert not tested.put(story.page(3, nbytes=4 * PAGE))
    assert sorted(_numbers(tested, story)) == [1, 2]
    tested.tier.check_integrity()


def test_the_budget_holds_after_every_step(make: Make) -> None:
    tested = make(3)
    for turn in range(5):
        story = Story(f"turn {turn}", nbytes=PAGE - 1000 * turn)
        for number in (1, 2, 3, 4):
            assert tested.put(story.page(number))
            usage = tested.tier.usage()
            assert tested.measured() <= usage.nbytes <= usage.peak_bytes <= usage.limit_bytes
            tested.tier.check_integrity()
        tested.tier.touch(story.ids(1, 2, 3, 4))
        tested.tier.discard([story.id(2)])
        tested.tier.check_integrity()


def test_a_page_of_no_bytes_is_a_page(make: Make, story: Story) -> None:
    tested = make(2)
    meta = story.meta(1)
    empty = Page(
        type(meta)(
            meta.namespace, meta.key, meta.parent, meta.group, 16, 16, False, "dense", tensors=()
        ),
        b"",
    )
    assert tested.put(empty)
    assert tested.get(meta.id) == b""
    tested.tier.check_integrity()


def test_no_use_makes_a_page_older_than_another_use_has_left_it(make: Make, story: Story) -> None:
    tested = make(4)
    for page in story.pages(1, 2, 3):
        assert tested.put(page)
    tested.tier.demote(story.ids(1, 2, 3), 100)
    tested.tier.touch(story.ids(1), 300)
    tested.tier.touch(story.ids(1, 2), 200)
    assert _numbers(tested, story) == [3, 2, 1]
    # Its own marks, up to a stamp, a use may take back.
    tested.tier.touch(story.ids(1, 2, 3), 150, 200)
    assert {listed.used_ns for listed in tested.listed()} == {150, 300}
    assert _numbers(tested, story) == [3, 2, 1]


def test_branches_are_where_other_chains_leave(make: Make, story: Story) -> None:
    tested = make(6)
    for page in (*story.pages(1, 2, 3), story.page(2, tail=5), story.page(2, group="state")):
        assert tested.put(page)
    keys = {story.namespace, *(page.key for page in story.ids(1, 2, 3))}
    assert tested.tier.branches(keys) == {story.id(1).key}
    assert tested.tier.branches({*keys, story.id(2, tail=5).key}) == set()
    assert tested.tier.branches({story.id(2).key}) == {story.id(2).key}


def test_what_is_pinned_is_the_last_to_leave_until_it_is_unpinned(make: Make, story: Story) -> None:
    tested, other = make(6), Story("other", nbytes=PAGE)
    _fill(tested, story, 1, 2, 3)
    pages = story.ids(1, 2, 9)
    pin = story.pin(1, 2, 9, until_ns=1 << 61)
    assert tested.tier.pins.add(pin)
    made = tested.tier.repin(pages)
    assert (made.found_pages, made.pages) == (2, 2)
    assert made.nbytes >= 2 * PAGE
    for number in range(1, 9):
        assert tested.put(other.page(number))
    assert [page for page in story.ids(1, 2, 3) if tested.tier.info(page)] == story.ids(1, 2)
    tested.tier.pins.remove(pin)
    tested.tier.repin(pages)
    for number in range(9, 16):
        assert tested.put(other.page(number))
    assert not any(tested.tier.info(page) for page in story.ids(1, 2, 3))
    tested.tier.check_integrity()
