"""What only the hot tier promises: reservations, a sequence's own pages, and runs of pages that are
admitted together."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.storage import (
    FaultyDisk,
    Story,
    check_integrity,
    commit,
    end_write,
    open_store,
    page_state,
    store_page,
)
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache_storage.eviction.keep import NEVER_NS
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.hot_page import PageState, Reservation
from omlx_cache_storage.page import Page, PageId


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
    (write,), _ = tier.queue([page])
    # A peer process wrote more of it, which a request read; and then the disk gave that up.
    assert _put(tier, longer)
    held = tier.record(page, write.came_ns)
    tier.mark_lost([(page, held.stamp_ns)])
    assert held.page is longer
    assert tier.end_write(write, None if refused else longer, held.stamp_ns)
    assert page_state(tier, page) is not PageState.DIRTY
    tier.check_integrity(idle=True)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "reserve", "pin", "unpin", "write", "refuse", "release", "touch", "lose"]
        ),
        st.sampled_from("ab"),
        st.integers(1, 3),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    min_size=20,
    max_size=60,
)


@given(steps=STEPS, retain=st.booleans(), backed=st.booleans())
def test_nothing_is_granted_beyond_the_limit_and_nothing_pinned_or_own_is_lost(
    steps: list[tuple[str, str, int, bool, bool, bool]],
    retain: bool,
    backed: bool,
) -> None:
    tier = HotTier(8_000, retain=retain, backed=backed)
    stories = {name: Story(name, nbytes=700 + 900 * (name == "b")) for name in "ab"}
    pins: dict[PageId, int] = {}
    reserved: list[Reservation] = []
    for what, name, number, own, evict, give_up in steps:
        story = stories[name]
        page = story.page(number, nbytes=story.nbytes * number)
        id_ = page.meta.id
        if what == "put":
            mine = set(story.ids(1, 2, 3)) if own else set()
            held = {p for p in mine if tier.info(p) is not None}
            kept = {p for p in held if not (backed and page_state(tier, p) is PageState.CLEAN)}
            grant = tier.reserve(page.meta.nbytes, mine, evict=evict, give_up_dirty=give_up)
            assert all(tier.info(p) is not None for p in kept)
            if grant:
                tier.put(page, grant, dirty=backed and give_up)
        elif what == "reserve":
            reserved.append(tier.reserve(page.meta.nbytes, evict=evict, give_up_dirty=give_up))
        elif what == "pin":
            pins |= {one.page: pins.get(one.page, 0) + 1 for one in tier.queue([id_])[0]}
        elif what in ("unpin", "write", "refuse") and pins.get(id_):
            pins[id_] -= 1
            refused_ns = _used(tier, id_) if what == "refuse" else None
            end_write(tier, id_, written=page if what == "write" else None, refused_ns=refused_ns)
        elif what == "release":
            while reserved:
                reserved.pop().release()
        elif what == "touch":
            tier.touch(story.ids(*range(1, number + 1)))
        elif what == "lose":
            tier.mark_lost([(id_, NEVER_NS)])
        tier.check_integrity()
        usage = tier.usage()
        assert usage.nbytes <= usage.peak_bytes <= usage.limit_bytes
        assert all(tier.info(p) is not None for p, count in pins.items() if count)


def _used(tier: HotTier, page: PageId) -> int:
    held = tier.record(page)
    return 0 if held is None else held.stamp_ns


def _clean(store: BlockStore) -> list[PageId]:
    return [held.id for held in store.hot.entries() if held.state is PageState.CLEAN]


def test_a_page_that_the_disk_refused_stays_in_memory_and_is_offered_when_it_is_used(
    tmp_path: Path,
) -> None:
    story, disk = Story(nbytes=16 * KIB), FaultyDisk()
    with open_store(tmp_path, disk, cold_bytes=280 * KIB) as store:
        # What is refused before the commit has ordered it is offered again.
        disk.gate.clear()
        commit(store, story, *range(1, 17))
        disk.gate.set()
        assert store.flush()
        refused = [n for n in range(1, 17) if store.cold.info(story.id(n)) is None]
        assert refused
        assert store.writer.usage().refused_pages >= len(refused)
        first = story.id(refused[0])
        assert first not in _clean(store)
        # The idle writer leaves it alone, and so does a flush.
        assert first not in store.hot.dirty()
        # Now something on the disk is worth less.
        store.demote(story.ids(1))
        store.touch([first])
        assert store.flush()
        assert store.cold.info(first) is not None
        assert first in _clean(store)


def memory(tmp_path: Path, hot_bytes: int) -> BlockStore:
    return open_store(tmp_path, hot_bytes=hot_bytes, hot_cache_only=True)


def fill(store: BlockStore, story: Story) -> None:
    """Admit and put 64 pages of a KiB, which are all that 64 KiB take."""
    for number in range(1, 65):
        assert store_page(store, story.page(number))


def test_a_run_evicts_pages_of_others_and_leaves_the_budget_a_ceiling(
    tmp_path: Path, story: Story
) -> None:
    with memory(tmp_path, 64 * KIB) as store:
        fill(store, story)
        assert store.admit_run(KIB, 8).nbytes == 2 * KIB
        usage = store.hot_usage()
        assert (usage.pages, usage.nbytes, usage.peak_bytes) == (62, 64 * KIB, 64 * KIB)


def test_a_run_takes_no_page_of_its_own_sequence_that_lies_before_its_end(
    tmp_path: Path, story: Story
) -> None:
    with memory(tmp_path, 64 * KIB) as store:
        fill(store, story)
        own = set(story.ids(*range(1, 65)))
        assert not store.admit_run(KIB, 2, own, position=story.page(64).meta.position)
        assert store.hot_usage().pages == 64
        assert store.admit_run(KIB, 2, own, position=story.page(62).meta.position).nbytes == 2 * KIB
        assert [store.find(story.id(n)) is None for n in (62, 63, 64)] == [False, True, True]


def test_a_page_of_a_run_that_the_disk_has_by_now_takes_no_room_from_the_others(
    tmp_path: Path, story: Story
) -> None:
    with open_store(tmp_path, hot_bytes=0, queue_bytes=320 * KIB) as store:
        with store.admit(KIB) as room:
            assert store.put(story.page(1), room)
        assert store.flush(30)
        with store.admit_run(KIB, 3) as room:
            assert not store.put(story.page(1), room)
            assert room.nbytes == 2 * KIB
            assert [store.put(story.page(number), room) for number in (2, 3)] == [True, True]
        assert store.flush(30)
        check_integrity(store)
