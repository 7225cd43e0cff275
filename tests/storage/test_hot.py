"""What only the hot tier promises: reservations, pins, dirty pages, and freed memory."""

import gc
import threading
from collections.abc import Callable

import mlx.core as mx
import pytest

from kit.storage import Story, end_write
from omlx_cache_storage.eviction.keep import Lru
from omlx_cache_storage.hot import NEVER_NS, HotTier
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


def test_a_pinned_page_is_pending_and_is_never_evicted(story: Story) -> None:
    tier = HotTier(2 * KIB)
    for number in (1, 2):
        assert _put(tier, story.page(number), dirty=number == 1)
    assert tier.queue(story.id(1)) is not None
    # Neither one whose write is queued, nor one that the disk has, nor one that is not there.
    assert [tier.queue(story.id(number)) for number in (1, 2, 9)] == [None, None, None]
    info = tier.info(story.id(1))
    assert info is not None
    assert info.tier == "pending"
    assert _put(tier, story.page(3))
    assert not tier.reserve(2 * KIB)
    assert tier.info(story.id(1)) is not None
    end_write(tier, story.id(1), written=story.page(1))
    assert tier.reserve(2 * KIB)
    tier.check_integrity()


def test_dirty_pages_are_named_in_eviction_order_and_clean_after_a_write(story: Story) -> None:
    tier = HotTier(8 * KIB)
    for number in (1, 2, 3):
        assert _put(tier, story.page(number), dirty=True)
    tier.touch(story.ids(1, 2, 3))
    assert tier.dirty() == story.ids(3, 2, 1)
    assert tier.dirty(beyond_bytes=KIB) == story.ids(3, 2)
    tier.queue(story.id(3))
    assert tier.dirty() == story.ids(2, 1)
    end_write(tier, story.id(3), written=None)
    assert tier.rooted([story.id(3)])
    tier.queue(story.id(3))
    end_write(tier, story.id(3), written=story.page(3))
    assert not tier.rooted([story.id(3)])
    assert tier.info(story.id(3)) is not None
    tier.mark_lost([(page, NEVER_NS) for page in story.ids(3, 9)])
    assert tier.rooted([story.id(3)])
    tier.check_integrity()


def test_a_page_that_the_disk_evicted_is_written_again_only_after_its_next_use(
    story: Story,
) -> None:
    tier = HotTier(8 * KIB)
    assert _put(tier, story.page(1), dirty=True)
    assert tier.queue(story.id(1)) is not None
    end_write(tier, story.id(1), written=story.page(1))
    held = tier.record(story.id(1))
    assert held is not None
    tier.mark_lost([(story.id(1), held.stamp_ns)])
    assert tier.queue(story.id(1)) is None
    tier.touch(story.ids(1))
    assert tier.queue(story.id(1)) is not None
    tier.check_integrity()


def test_a_write_of_an_older_version_leaves_the_newer_one_dirty(story: Story) -> None:
    tier = HotTier(8 * KIB)
    small, full = story.page(1, held=8), story.page(1, held=16)
    assert _put(tier, small, dirty=True)
    tier.queue(small.meta.id)
    assert _put(tier, full, dirty=True)
    end_write(tier, small.meta.id, written=small)
    assert tier.rooted([full.meta.id])
    tier.check_integrity()


def test_a_page_read_late_does_not_replace_a_fuller_one(story: Story) -> None:
    tier = HotTier(8 * KIB)
    assert _put(tier, story.page(1, held=16), dirty=True)
    assert not _put(tier, story.page(1, held=8))
    info = tier.info(story.id(1))
    assert info is not None
    assert info.held == 16
    assert tier.rooted([story.id(1)])
    assert tier.usage().nbytes == KIB
    tier.check_integrity()


def test_dirty_pages_stand_in_the_way_unless_they_are_given_up(story: Story) -> None:
    tier = HotTier(2 * KIB, backed=True)
    assert _put(tier, story.page(1), dirty=True)
    assert _put(tier, story.page(2), dirty=True)
    grant = tier.reserve(KIB)
    assert (bool(grant), set(grant.dirty)) == (False, set(story.ids(1, 2)))
    assert tier.usage().pages == 2
    assert tier.reserve(KIB, give_up_dirty=True)
    assert tier.usage().pages == 1
    tier.check_integrity()


def test_without_retention_a_page_leaves_when_it_is_written_and_not_before(story: Story) -> None:
    tier = HotTier(4 * KIB, retain=False)
    for number in (1, 2):
        assert _put(tier, story.page(number), dirty=True)
        tier.queue(story.id(number))
    end_write(tier, story.id(1), written=story.page(1))
    end_write(tier, story.id(2), written=None)
    assert tier.get(story.id(1)) is None
    assert tier.get(story.id(2)) is not None
    tier.check_integrity()


def test_a_page_discarded_while_it_is_read_stays_valid_for_the_reader(story: Story) -> None:
    tier = HotTier(4 * KIB)
    assert _put(tier, story.page(1))
    held = tier.get(story.id(1))
    tier.discard([story.id(1)])
    assert held is not None
    assert held.payload == story.page(1).payload
    assert tier.usage().nbytes == 0


def test_threads_that_put_and_evict_never_exceed_the_budget() -> None:
    tier = HotTier(16 * KIB)
    wrong: list[str] = []

    def work(name: str) -> None:
        story = Story(name, nbytes=KIB)
        for turn in range(300):
            number = turn % 20 + 1
            if _put(tier, story.page(number), dirty=turn % 3 == 0):
                tier.touch(story.ids(1, number))
            found = tier.get(story.id(number))
            if found is not None and found.payload != story.page(number).payload:
                wrong.append(f"{name} {number}")
            usage = tier.usage()
            if usage.nbytes > usage.limit_bytes:
                wrong.append(f"{usage}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    tier.check_integrity()


def test_an_evicted_page_frees_its_memory() -> None:
    size = 4 * KIB * KIB
    story = Story(nbytes=size)
    tier = HotTier(3 * size)
    gc.collect()
    before = mx.get_active_memory()
    for number in (1, 2, 3, 4, 5, 6):
        meta = story.meta(number)
        room = tier.reserve(size)
        assert room
        payload = mx.zeros((size,), dtype=mx.uint8)
        mx.eval(payload)
        tier.put(Page(meta, payload), room, dirty=False)
        del payload
        assert mx.get_active_memory() - before <= min(number, 3) * size + 64 * KIB
    listed = tier.entries()
    tier.discard([story.id(6)])
    assert mx.get_active_memory() - before <= 2 * size + 64 * KIB
    tier.discard([held.id for held in listed])
    assert mx.get_active_memory() - before <= 64 * KIB
