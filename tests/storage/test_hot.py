"""What only the hot tier promises: reservations, pins, dirty pages, and freed memory."""

import threading
from collections.abc import Callable

import pytest

from kit.storage import Story
from omlx_cache_storage.eviction.keep import Lru
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import Page, PageId

KIB = 1024


@pytest.fixture
def story() -> Story:
    return Story(nbytes=KIB)


def _put(tier: HotTier, page: Page, *, dirty: bool = False) -> bool:
    room = tier.reserve(page.meta.nbytes)
    return bool(room) and tier.put(page, room, dirty=dirty)


def test_a_reservation_counts_until_it_is_used_or_released(story: Story) -> None:
    tier = HotTier(2 * KIB)
    room = tier.reserve(KIB)
    with tier.reserve(KIB) as unused:
        assert room
        assert unused
        assert not tier.reserve(1)
        assert tier.usage().nbytes == 2 * KIB
    assert tier.put(story.page(1), room, dirty=False)
    assert tier.usage().nbytes == KIB
    tier.check_integrity()


def test_without_a_disk_pages_are_not_evicted_for_their_own_chain(story: Story) -> None:
    tier = HotTier(2 * KIB)
    assert _put(tier, story.page(1))
    assert _put(tier, story.page(2))
    assert not tier.reserve(KIB, set(story.ids(1, 2)))
    assert tier.reserve(KIB, set(story.ids(1)))
    assert tier.info(story.id(1)) is not None
    assert tier.info(story.id(2)) is None


@pytest.mark.parametrize("refused", [False, True])
def test_a_queued_page_that_the_disk_had_longer_and_evicts_is_written_after_all(
    story: Story, refused: bool
) -> None:
    tier = HotTier(4 * KIB, backed=True)
    short, longer = story.page(1, held=3), story.page(1)
    page = story.id(1)
    assert _put(tier, short, dirty=True)
    write = tier.queue(page)
    assert write is not None
    # A peer process wrote more of it, which a request read; and then the disk gave that up.
    assert _put(tier, longer)
    held = tier.queued(write)
    assert held is not None
    tier.mark_lost([(page, held.stamp_ns)])
    assert held.page is longer
    assert tier.end_write(write, None if refused else longer, held.stamp_ns)
    assert not tier.rooted([page])
    tier.check_integrity(idle=True)


class _Watched(Lru):
    """Has another thread look into memory whenever a page comes or goes."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], object] = lambda: None

    def _watch(self) -> None:
        thread = threading.Thread(target=self.look, daemon=True)
        thread.start()
        thread.join(0.2)

    def added(self, stamp_ns: int, count: int = 1) -> None:
        self._watch()

    def left(self, page: PageId, stamp_ns: int) -> None:
        self._watch()


def test_a_page_that_a_longer_one_replaces_is_there_at_any_moment(story: Story) -> None:
    policy, seen = _Watched(), list[object]()
    tier = HotTier(4 * KIB, backed=True, policy=policy)
    assert _put(tier, story.page(1, held=3), dirty=True)
    page = story.id(1)
    first = tier.record(page)
    assert first is not None
    used = first.stamp_ns

    def look() -> None:
        seen.extend([tier.get(page), tier.info(page), tier.rooted([page])])
        held = tier.record(page)
        seen.append(held is not None and held.stamp_ns >= used)

    policy.look = look
    assert _put(tier, story.page(1), dirty=True)
    policy.look = lambda: None
    assert all(seen)
    tier.check_integrity()
