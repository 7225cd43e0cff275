"""What memory refuses reaches the disk, and nothing waits for it, fails for it or is lost by it."""

import errno
from pathlib import Path

import pytest
from eviction.patient import PATIENCE_SECONDS, offer, patient

from kit.storage import FaultyDisk, HandClock, Story, commit_to_disk, is_right, open_store
from kit.units import KIB
from omlx_cache import BlockStore

ROOM = 32
OLD = range(1, ROOM + 1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx_cache.store.Keep", patient)


def _full(
    directory: Path, clock: HandClock, disk: FaultyDisk | None = None, **options: object
) -> tuple[BlockStore, Story]:
    """Return a store whose memory is full of pages that were used now."""
    fields = {"hot_bytes": ROOM * 4 * KIB, "queue_bytes": 16 * KIB, **options}
    store = open_store(directory, disk, clock, **fields)
    story = Story("old")
    commit_to_disk(store, story, *OLD)
    store.touch(story.ids(*OLD))
    assert store.flush(60)
    return store, story


@pytest.mark.parametrize("policy", ["through", "lazy"])
def test_a_refused_page_is_on_the_disk_and_not_in_memory(tmp_path: Path, policy: str) -> None:
    clock, new = HandClock(), Story("new")
    store, story = _full(tmp_path, clock, write_policy=policy)
    with store:
        for number in range(1, 13):
            assert offer(store, new.page(number)).passes
            assert store.hot.usage().nbytes <= store.hot.limit_bytes
            assert store.flush(60)
        for page in new.ids(*range(1, 13)):
            assert store.hot.info(page) is None
            assert store.cold.info(page) is not None
            assert is_right(store, page, new.nbytes)
        # An eighth at most made room for them, from the deep end.
        kept = [number for number in OLD if store.hot.info(story.id(number))]
        assert ROOM - ROOM // 8 <= len(kept) < ROOM
        assert kept == list(range(1, len(kept) + 1))
        store.hot.check_integrity()
        clock.pass_by(PATIENCE_SECONDS + 1)
        room = offer(store, new.page(13))
        assert room
        assert not room.passes
        assert store.hot.info(new.id(13)) is not None


def _gone(store: BlockStore, story: Story) -> int:
    return sum(1 for page in story.ids(*OLD) if store.hot.info(page) is None)


def test_a_full_queue_takes_nothing_and_nobody_waits(tmp_path: Path) -> None:
    disk, new = FaultyDisk(), Story("new")
    store, story = _full(tmp_path, HandClock(), disk, write_policy="lazy", queue_bytes=8 * KIB)
    with store:
        disk.gate.clear()
        rooms = [offer(store, new.page(number)) for number in range(1, 13)]
        # As many as the queue holds, which is less than an eighth of memory.
        assert [room.passes for room in rooms] == [True] * 2 + [False] * 10
        assert not any(room.refused for room in rooms)
        assert store.hot.usage().nbytes <= store.hot.limit_bytes
        disk.gate.set()
        assert store.flush(60)
        assert [p for p in new.ids(*range(1, 13)) if store.find(p)] == new.ids(1, 2)
        assert not any(store.hot.info(page) for page in new.ids(1, 2))
        assert _gone(store, story) <= 4


@pytest.mark.parametrize("policy", ["through", "lazy"])
def test_a_disk_that_fails_costs_memory_no_more_than_the_share(tmp_path: Path, policy: str) -> None:
    disk, new = FaultyDisk(), Story("new")
    store, story = _full(tmp_path, HandClock(), disk, write_policy=policy)
    with store:
        disk.fail["write"] = errno.EIO
        taken = []
        for number in range(1, 13):
            if offer(store, new.page(number)):
                taken.append(new.id(number))
            store.flush(60)
            store.hot.check_integrity()
            assert store.hot.usage().nbytes <= store.hot.limit_bytes
        assert taken
        assert _gone(store, story) <= ROOM // 8
        assert not store.flush(60)
        del disk.fail["write"]
        assert store.flush(60)
        # What came while the disk failed is written, and leaves memory then.
        assert all(store.cold.info(page) for page in taken)
        assert not any(store.hot.info(page) for page in taken)
        assert store.hot._passing_bytes == 0
