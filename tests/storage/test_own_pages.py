"""A sequence longer than memory: its own pages leave last, and never before the disk has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.storage import FaultyDisk, Story, commit, end_write, open_store
from omlx_cache import BlockStore
from omlx_cache_storage.hot import NEVER_NS, HotTier
from omlx_cache_storage.hot_page import Held, PageState, Reservation
from omlx_cache_storage.page import Page, PageId

KIB = 1024


@pytest.fixture
def story() -> Story:
    return Story(nbytes=KIB)


def _put(tier: HotTier, page: Page, *, dirty: bool = False) -> bool:
    room = tier.reserve(page.meta.nbytes)
    return bool(room) and tier.put(page, room, dirty=dirty)


def test_own_pages_leave_memory_only_when_the_disk_has_them(story: Story) -> None:
    tier = HotTier(2 * KIB, backed=True)
    own = set(story.ids(1, 2, 3))
    for number in (1, 2):
        assert _put(tier, story.page(number), dirty=True)
    assert not tier.reserve(KIB, own)
    assert tier.usage().pages == 2
    tier.queue(story.id(2))
    assert not tier.reserve(KIB, own)
    end_write(tier, story.id(2), written=story.page(2))
    assert tier.reserve(KIB, own)
    assert tier.info(story.id(1)) is not None
    assert tier.info(story.id(2)) is None
    tier.check_integrity()


def test_own_pages_that_no_disk_takes_give_way_to_one_before_them(story: Story) -> None:
    tier = HotTier(2 * KIB, backed=True)
    own = set(story.ids(1, 2, 3))
    for number in (1, 3):
        assert _put(tier, story.page(number), dirty=True)
        tier.queue(story.id(number))
        end_write(tier, story.id(number), refused_ns=_used(tier, story.id(number)))
    position = story.page(2).meta.position
    assert not tier.reserve(KIB, own)
    assert not tier.reserve(KIB, own, position=story.page(4).meta.position)
    assert tier.reserve(KIB, own, position=position)
    assert tier.info(story.id(1)) is not None
    assert tier.info(story.id(3)) is None


def test_a_page_that_the_disk_evicted_is_unwritten_once_it_is_used_again(story: Story) -> None:
    tier = HotTier(4 * KIB, backed=True)
    for number in (1, 2):
        assert _put(tier, story.page(number))
        tier.demote(story.ids(number), 10)
    tier.touch(story.ids(2), 11)
    tier.mark_lost([(story.id(1), 10), (story.id(2), 10), (story.id(3), 10)])
    assert tier.dirty() == story.ids(2), "it was used after the disk had let it go"
    tier.touch(story.ids(1), 12)
    assert set(tier.dirty()) == set(story.ids(1, 2))
    tier.check_integrity()


def shown_by(tier: HotTier, monkeypatch: pytest.MonkeyPatch) -> list[PageId]:
    """Return a list that grows by every page that the tier's order shows from now on."""
    shown: list[PageId] = []
    in_order = tier._index.in_order

    def counted() -> Iterator[Held]:
        for held in in_order():
            shown.append(held.id)
            yield held

    monkeypatch.setattr(tier._index, "in_order", counted)
    return shown


def test_what_a_page_costs_does_not_grow_with_the_pages_of_its_sequence_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = 256
    story = Story(nbytes=KIB, blocks=2 * held)
    tier = HotTier(held * KIB, backed=True)
    shown = shown_by(tier, monkeypatch)
    own: set[PageId] = set()
    for number in range(1, 2 * held + 1):
        room = tier.reserve(KIB, own)
        assert room
        assert tier.put(story.page(number), room, dirty=False, stamp_ns=1)
        own.add(story.id(number))
        assert tier.usage().nbytes >= min(number, held - held // 32) * KIB
    assert len(shown) <= held * 40


def test_what_write_back_names_costs_no_walk_over_all_pages_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = 256
    story = Story(nbytes=KIB, blocks=held)
    tier = HotTier(held * KIB, backed=True)
    shown = shown_by(tier, monkeypatch)
    for number in range(1, held + 1):
        assert _put(tier, story.page(number), dirty=True)
        for page in tier.dirty(beyond_bytes=held // 2 * KIB):
            tier.queue(page)
    assert len(tier.rooted(story.ids(*range(1, held + 1)))) >= held // 2 - 4
    assert len(shown) <= held * 32
    tier.check_integrity()


@pytest.mark.parametrize("give_up_dirty", [False, True])
def test_own_pages_that_the_disk_lacks_stay_under_write_back_too(
    story: Story, give_up_dirty: bool
) -> None:
    tier = HotTier(2 * KIB, backed=True)
    for number in (1, 2):
        assert _put(tier, story.page(number), dirty=True)
    grant = tier.reserve(KIB, set(story.ids(1, 2)), give_up_dirty=give_up_dirty)
    assert (bool(grant), set(grant.dirty)) == (False, set(story.ids(1, 2)))
    assert tier.usage().pages == 2


def test_own_pages_leave_after_those_of_others_however_old_they_are(story: Story) -> None:
    tier = HotTier(3 * KIB, backed=True)
    other = Story("other", nbytes=KIB)
    assert _put(tier, story.page(1))
    assert _put(tier, story.page(2))
    assert _put(tier, other.page(1))
    own = set(story.ids(1, 2, 3))
    tier.touch(story.ids(1, 2))
    tier.touch(other.ids(1))
    with tier.reserve(KIB, own) as room:
        assert room
        assert tier.info(other.id(1)) is None
    assert tier.reserve(2 * KIB, own)
    assert tier.info(story.id(1)) is not None
    assert tier.info(story.id(2)) is None


def test_without_evict_only_free_room_is_granted(story: Story) -> None:
    tier = HotTier(3 * KIB, backed=True)
    for number in (1, 2):
        assert _put(tier, story.page(number))
    assert tier.reserve(KIB, evict=False)
    assert not tier.reserve(1, evict=False)
    assert tier.usage().pages == 2
    assert tier.usage().evicted_pages == 0


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
            kept = {p for p in held if not (backed and _durable(tier, p))}
            grant = tier.reserve(page.meta.nbytes, mine, evict=evict, give_up_dirty=give_up)
            assert all(tier.info(p) is not None for p in kept)
            if grant:
                tier.put(page, grant, dirty=backed and give_up)
        elif what == "reserve":
            reserved.append(tier.reserve(page.meta.nbytes, evict=evict, give_up_dirty=give_up))
        elif what == "pin" and tier.queue(id_) is not None:
            pins[id_] = pins.get(id_, 0) + 1
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


def _durable(tier: HotTier, page: PageId) -> bool:
    held = tier.record(page)
    return held is not None and held.state is PageState.CLEAN


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
        assert store.cold is not None
        assert store.writer is not None
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
