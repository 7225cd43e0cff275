"""What only the hot tier promises: reservations, pins, dirty pages, and freed memory."""

import pytest

from kit.storage import Story
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import Page

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
    # A peer process wrote more of it, which a request read; and then the disk gave that up.
    assert _put(tier, longer)
    held = tier.queued(write)
    tier.mark_lost([(page, held.stamp_ns)])
    assert held.page is longer
    assert tier.end_write(write, None if refused else longer, held.stamp_ns)
    assert not tier.rooted([page])
    tier.check_integrity(idle=True)
