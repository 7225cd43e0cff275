"""Pages that are admitted together: within every budget, or one by one."""

from pathlib import Path

import pytest

from kit.storage import Story, check_integrity, open_store
from omlx_cache import BlockStore

KIB = 1024


@pytest.fixture
def story() -> Story:
    return Story(nbytes=KIB)


def memory(tmp_path: Path, hot_bytes: int) -> BlockStore:
    return open_store(tmp_path, hot_bytes=hot_bytes, hot_cache_only=True)


def test_a_run_evicts_pages_of_others_and_leaves_the_budget_a_ceiling(
    tmp_path: Path, story: Story
) -> None:
    with memory(tmp_path, 64 * KIB) as store:
        for number in range(1, 65):
            room = store.admit(KIB)
            assert room
            store.put(story.page(number), room)
        assert store.admit_run(KIB, 8).nbytes == 2 * KIB
        usage = store.hot_usage()
        assert (usage.pages, usage.nbytes, usage.peak_bytes) == (62, 64 * KIB, 64 * KIB)


def test_a_run_takes_no_page_of_its_own_sequence_that_lies_before_its_end(
    tmp_path: Path, story: Story
) -> None:
    with memory(tmp_path, 64 * KIB) as store:
        for number in range(1, 65):
            room = store.admit(KIB)
            assert room
            store.put(story.page(number), room)
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
