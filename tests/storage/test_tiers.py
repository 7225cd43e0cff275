"""What `Tier` promises, on every tier: hot with bytes, hot with live arrays, cold on a disk, cold
on a disk that another process writes to as well."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from kit.storage import Story, bytes_of, expected_payload, open_cold, read_cold
from kit.units import KIB
from omlx_cache.control.listing import ListedPage, list_pages
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, Clock
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import Page, PageId, Tail

PAGE = 128 * KIB


class _Hot:
    def __init__(self, pages: int, live: bool) -> None:
        self.tier = HotTier(pages * PAGE)
        self.live = live

    def put(self, page: Page) -> bool:
        room = self.tier.reserve(page.meta.nbytes)
        if not room:
            return False
        payload: Any = page.payload
        if self.live:
            payload = mx.array(bytearray(page.payload), dtype=mx.uint8)
            mx.eval(payload)
        self.tier.put(Page(page.meta, payload), room, dirty=False)
        return True

    def get(self, page: PageId) -> bytes:
        return bytes_of(self.tier.get(page))

    def listed(self) -> list[ListedPage]:
        return list_pages(self.tier.entries(), ())


class _Backing:
    def __init__(self, pages: int, directory: Path) -> None:
        # Header, blocks and a shard directory for each page; what lies beside pages in the
        # directory and in three namespaces; room for a write.
        limit = pages * (PAGE + 24 * KIB) + 96 * KIB
        self.clock = Clock()
        self.tier = open_cold(directory, limit, clock=self.clock)

    def put(self, page: Page) -> bool:
        return self.tier.write(page, self.clock.now(), {"model": "m"}) in ("written", "present")

    def get(self, page: PageId) -> bytes:
        return read_cold(self.tier, page)

    def listed(self) -> list[ListedPage]:
        return list_pages(
            (), sorted(self.tier.listing(), key=lambda e: (e.used_ns, -e.info.position))
        )


class _Shared(_Backing):
    """A tier of one process, into which another one's puts every second page."""

    def __init__(self, pages: int, directory: Path) -> None:
        super().__init__(pages, directory)
        self._other = ColdTier(directory, self.tier.limit_bytes, clock=self.clock)
        self._other.open()
        self._turn = 0

    def put(self, page: Page) -> bool:
        self._turn += 1
        writer = self._other if self._turn % 2 else self.tier
        # What the one knows of recency the other asks the files.
        self.tier.settle()
        result = writer.write(page, self.clock.now(), {"model": "m"})
        self.tier.refresh()
        return result in ("written", "present")


AnyTier = _Hot | _Backing
Make = Callable[[int], AnyTier]
KINDS: dict[str, Callable[[int, Path], AnyTier]] = {
    "hot with bytes": lambda pages, _: _Hot(pages, False),
    "hot with arrays": lambda pages, _: _Hot(pages, True),
    "cold": _Backing,
    "cold, shared": _Shared,
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a tier with room for so many pages of this module's size."""
    return lambda pages: KINDS[request.param](pages, tmp_path / "cold")


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _fill(tested: AnyTier, story: Story, *numbers: int) -> AnyTier:
    """Return a tier after one use of these pages."""
    for page in story.pages(*numbers):
        assert tested.put(page)
    tested.tier.touch(story.ids(*numbers))
    return tested


def _order(tested: AnyTier) -> list[PageId]:
    return [listed.page for listed in tested.listed()]


def _numbers(tested: AnyTier, story: Story) -> list[int]:
    known = {story.id(number): number for number in range(1, 30)}
    return [known[page] for page in _order(tested)]


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
    tested = _fill(make(4), story, 1, 2)
    tail = story.page(2, tail=5)
    assert tested.put(tail)
    assert tested.tier.tails_of([tail.meta.parent]) == {Tail(tail.meta.position, "paged")}
    assert tested.tier.tails_of([story.id(7).key]) == set()
    assert tested.tier.discard([tail.meta.id]) == 1
    assert tested.tier.tails_of([tail.meta.parent]) == set()


def test_many_pages_are_asked_for_at_once_and_told_in_order(make: Make, story: Story) -> None:
    tested = _fill(make(4), story, 1, 3)
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


def test_a_chain_loses_its_tail_before_its_root(make: Make, story: Story) -> None:
    tested = _fill(make(4), story, 1, 2, 3, 4)
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
    tested = _fill(make(4), story, 1, 2, 3, 4)
    tested.tier.touch(story.ids(3, 1, 4, 2))
    assert _numbers(tested, story) == [4, 3, 2, 1]


def test_superseded_pages_leave_before_all_others(make: Make, story: Story) -> None:
    tested = _fill(make(4), story, 1, 2, 3, 4)
    tested.tier.demote(story.ids(1, 2), SUPERSEDED_NS)
    assert _numbers(tested, story) == [2, 1, 4, 3]
    tested.tier.demote(story.ids(3), SUPERSEDED_NS - 1)
    assert _numbers(tested, story) == [3, 2, 1, 4]
    tested.tier.touch(story.ids(1))
    assert _numbers(tested, story) == [3, 2, 4, 1]


def test_a_page_larger_than_the_tier_is_refused_and_evicts_nothing(
    make: Make, story: Story
) -> None:
    tested = _fill(make(2), story, 1, 2)
    assert not tested.put(story.page(3, nbytes=4 * PAGE))
    assert sorted(_numbers(tested, story)) == [1, 2]
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
