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
