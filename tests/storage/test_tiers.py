"""What every tier promises, on every tier: hot with bytes, hot with live arrays, cold on a disk."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import pytest

from kit.storage import Story, bytes_of, disk_usage, expected_payload, read_cold
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import Page, PageId, PageInfo
from omlx_cache_storage.recency import Clock

KIB = 1024
PAGE = 128 * KIB


class Tier(Protocol):
    """One face for the tiers; `limit_bytes` and `used()` in the tier's own measure."""

    def put(self, page: Page) -> bool: ...
    def get(self, page: PageId) -> bytes: ...
    def info(self, page: PageId) -> PageInfo | None: ...
    def touch(self, chain: Sequence[PageId]) -> None: ...
    def demote(self, pages: Iterable[PageId]) -> None: ...
    def discard(self, page: PageId) -> None: ...
    def order(self) -> list[PageId]: ...
    def used(self) -> tuple[int, int, int]: ...
    def check(self) -> None: ...


class _Hot:
    def __init__(self, pages: int, live: bool) -> None:
        self.tier = HotTier(pages * PAGE)
        self.live = live
        self.touch = self.tier.touch
        self.demote = self.tier.demote
        self.discard = self.tier.discard
        self.info = self.tier.info

    def put(self, page: Page) -> bool:
        if not self.tier.reserve(page.meta.nbytes).granted:
            return False
        payload: Any = page.payload
        if self.live:
            payload = mx.array(bytearray(page.payload), dtype=mx.uint8)
            mx.eval(payload)
        self.tier.put(Page(page.meta, payload), dirty=False)
        return True

    def get(self, page: PageId) -> bytes:
        found = self.tier.get(page)
        assert found is not None
        return bytes_of(found)

    def order(self) -> list[PageId]:
        return [entry.meta.id for entry in self.tier.entries()]

    def used(self) -> tuple[int, int, int]:
        usage = self.tier.usage()
        return usage.nbytes, usage.peak_bytes, usage.limit_bytes

    def check(self) -> None:
        self.tier.check_integrity()


class _Cold:
    def __init__(self, pages: int, directory: Path) -> None:
        # Header, blocks and a shard directory for each page; a few more; room for a write.
        limit = pages * (PAGE + 24 * KIB) + 80 * KIB
        self.directory = directory
        self.clock = Clock()
        self.tier = ColdTier(directory, limit, clock=self.clock)
        self.tier.open()
        self.touch = self.tier.touch
        self.demote = self.tier.demote
        self.info = self.tier.info

    def put(self, page: Page) -> bool:
        return self.tier.write(page, self.clock.now(), {"model": "m"}) in ("written", "present")

    def get(self, page: PageId) -> bytes:
        return read_cold(self.tier, page)

    def discard(self, page: PageId) -> None:
        self.tier.discard([page])

    def order(self) -> list[PageId]:
        return [entry.page for entry in self.tier.entries()]

    def used(self) -> tuple[int, int, int]:
        usage = self.tier.usage()
        assert disk_usage(self.directory) <= usage.nbytes
        return usage.nbytes, usage.peak_bytes, usage.limit_bytes

    def check(self) -> None:
        self.tier.check_integrity()


Make = Callable[[int], Tier]


@pytest.fixture(params=["hot with bytes", "hot with arrays", "cold"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes a tier with room for so many pages of this module's size, and no more."""
    if request.param == "cold":
        return lambda pages: _Cold(pages, tmp_path / "cold")
    return lambda pages: _Hot(pages, request.param == "hot with arrays")


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _fill(tier: Tier, story: Story, *numbers: int) -> None:
    for page in story.pages(*numbers):
        assert tier.put(page)
    tier.touch(story.ids(*numbers))


def _numbers(tier: Tier, story: Story) -> list[int]:
    known = {story.id(number): number for number in range(1, 30)}
    return [known[page] for page in tier.order()]


def test_what_is_put_is_got(make: Make, story: Story) -> None:
    tier = make(4)
    assert tier.info(story.id(1)) is None
    _fill(tier, story, 1, 2, 3)
    for number in (1, 2, 3):
        page = story.page(number)
        assert tier.get(page.meta.id) == page.payload == expected_payload(page.meta.id, PAGE)
        info = tier.info(page.meta.id)
        assert info is not None
        assert (info.position, info.held) == (number * 16, 16)
        assert info.nbytes >= PAGE
    tier.check()


def test_pages_of_groups_under_one_key_are_apart(make: Make, story: Story) -> None:
    tier = make(4)
    for group in ("paged", "window64keep0", "state"):
        assert tier.put(story.page(1, group=group))
    for group in ("paged", "window64keep0", "state"):
        page = story.page(1, group=group)
        assert tier.get(page.meta.id) == page.payload
    tier.check()


def test_a_page_put_twice_is_held_once(make: Make, story: Story) -> None:
    tier = make(4)
    _fill(tier, story, 1)
    used = tier.used()[0]
    _fill(tier, story, 1)
    assert tier.used()[0] == used
    assert tier.order() == [story.id(1)]


def test_a_page_that_holds_more_replaces_one_that_holds_less(make: Make, story: Story) -> None:
    tier = make(4)
    for held, expected in ((8, 8), (16, 16), (8, 16)):
        assert tier.put(story.page(1, held=held))
        info = tier.info(story.id(1))
        assert info is not None
        assert info.held == expected
        assert tier.get(story.id(1)) == expected_payload(story.id(1), PAGE)
        tier.check()
    assert tier.order() == [story.id(1)]


def test_a_discarded_page_is_gone_and_its_bytes_too(make: Make, story: Story) -> None:
    tier = make(4)
    _fill(tier, story, 1)
    before = tier.used()[0]
    _fill(tier, story, 2)
    tier.discard(story.id(2))
    tier.discard(story.id(2))
    assert tier.info(story.id(2)) is None
    assert tier.order() == [story.id(1)]
    assert tier.used()[0] == before
    tier.check()


def test_a_chain_loses_its_tail_before_its_root(make: Make, story: Story) -> None:
    tier = make(4)
    _fill(tier, story, 1, 2, 3, 4)
    assert tier.put(Story("other", nbytes=PAGE).page(1))
    assert tier.put(Story("third", nbytes=PAGE).page(1))
    assert [n for n in (1, 2, 3, 4) if tier.info(story.id(n)) is not None] == [1, 2]
    tier.check()


def test_the_chain_that_was_not_used_leaves_first(make: Make, story: Story) -> None:
    tier = make(4)
    other = Story("other", nbytes=PAGE)
    _fill(tier, story, 1, 2)
    _fill(tier, other, 1, 2)
    tier.touch(story.ids(1, 2))
    assert tier.put(Story("third", nbytes=PAGE).page(1))
    assert [tier.info(page) is not None for page in story.ids(1, 2)] == [True, True]
    assert [tier.info(page) is not None for page in other.ids(1, 2)] == [True, False]


def test_a_touch_is_by_depth_whatever_order_it_names(make: Make, story: Story) -> None:
    tier = make(4)
    _fill(tier, story, 1, 2, 3, 4)
    tier.touch(story.ids(3, 1, 4, 2))
    assert _numbers(tier, story) == [4, 3, 2, 1]


def test_superseded_pages_leave_before_all_others(make: Make, story: Story) -> None:
    tier = make(4)
    _fill(tier, story, 1, 2, 3, 4)
    tier.demote(story.ids(1, 2))
    assert _numbers(tier, story) == [2, 1, 4, 3]
    tier.demote(story.ids(3))
    assert _numbers(tier, story) == [3, 2, 1, 4]
    tier.touch(story.ids(1))
    assert _numbers(tier, story) == [3, 2, 4, 1]


def test_touching_and_demoting_absent_pages_does_nothing(make: Make, story: Story) -> None:
    tier = make(2)
    _fill(tier, story, 1)
    tier.touch(story.ids(1, 7))
    tier.demote(story.ids(8))
    assert tier.order() == story.ids(1)
    tier.check()


def test_a_page_larger_than_the_tier_is_refused_and_evicts_nothing(
    make: Make, story: Story
) -> None:
    tier = make(2)
    _fill(tier, story, 1, 2)
    assert not tier.put(story.page(3, nbytes=4 * PAGE))
    assert sorted(_numbers(tier, story)) == [1, 2]
    tier.check()


def test_the_budget_holds_after_every_step(make: Make) -> None:
    tier = make(3)
    for turn in range(5):
        story = Story(f"turn {turn}", nbytes=PAGE - 1000 * turn)
        for number in (1, 2, 3, 4):
            assert tier.put(story.page(number))
            used, peak, limit = tier.used()
            assert used <= peak <= limit
            tier.check()
        tier.touch(story.ids(1, 2, 3, 4))
        tier.discard(story.id(2))
        tier.check()


def test_a_page_of_no_bytes_is_a_page(make: Make, story: Story) -> None:
    tier = make(2)
    meta = story.meta(1)
    empty = Page(
        type(meta)(
            meta.namespace, meta.key, meta.parent, meta.group, 16, 16, False, "dense", tensors=()
        ),
        b"",
    )
    assert tier.put(empty)
    assert tier.get(meta.id) == b""
    tier.check()
