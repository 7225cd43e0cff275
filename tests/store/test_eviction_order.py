"""A store under pressure keeps roots, drops superseded pages first, and finds that order again."""

from pathlib import Path

from kit.storage import FaultyDisk, Story, commit, commit_to_disk, open_store
from kit.units import KIB
from omlx_cache import BlockStore

PAGE = 64 * KIB
COLD_PAGE = PAGE + 24 * KIB
ROOM_TO_OPEN = 64 * KIB
ROOM_TO_WRITE = PAGE + 100 * KIB


def _cold(store: BlockStore, story: Story) -> list[int]:
    return [number for number in range(1, 30) if story.id(number) in store.cold]


def test_the_disk_loses_the_tail_of_a_chain_that_memory_never_touched_again(
    tmp_path: Path,
) -> None:
    """Pages reach the disk root first, one by one; their eviction order is that of the chain."""
    story = Story(nbytes=PAGE)
    disk = FaultyDisk()
    limit = 6 * COLD_PAGE + ROOM_TO_WRITE
    with open_store(tmp_path, disk, cold_bytes=limit, queue_bytes=12 * PAGE) as store:
        disk.gate.clear()
        commit(store, story, 1, 2, 3, 4, 5, 6)
        disk.gate.set()
        assert store.flush()
        assert _cold(store, story) == [1, 2, 3, 4, 5, 6]
        commit_to_disk(store, Story("other", nbytes=PAGE), 1, 2, 3)
        kept = _cold(store, story)
        assert kept == list(range(1, len(kept) + 1))
        assert 2 <= len(kept) <= 4


def test_a_restart_finds_the_order_of_a_chain_that_was_written_late(tmp_path: Path) -> None:
    story, other = Story(nbytes=PAGE), Story("other", nbytes=PAGE)
    disk = FaultyDisk()
    with open_store(tmp_path, disk, queue_bytes=12 * PAGE) as store:
        disk.gate.clear()
        commit(store, story, 1, 2, 3, 4)
        store.demote(story.ids(2))
        disk.gate.set()
        assert store.flush()
        commit_to_disk(store, other, 1)
    with open_store(tmp_path, cold_bytes=3 * COLD_PAGE + ROOM_TO_OPEN) as store:
        assert _cold(store, story) == [1, 3]
        assert _cold(store, other) == [1]


def test_use_in_memory_counts_on_the_disk_as_well(tmp_path: Path) -> None:
    story, other = Story(nbytes=PAGE), Story("other", nbytes=PAGE)
    limit = 5 * COLD_PAGE + ROOM_TO_WRITE
    with open_store(tmp_path, cold_bytes=limit, hot_bytes=16 * PAGE) as store:
        commit(store, story, 1, 2)
        commit_to_disk(store, other, 1, 2)
        store.touch(story.ids(1, 2))
        commit_to_disk(store, Story("third", nbytes=PAGE), 1, 2, 3)
        assert _cold(store, story) == [1, 2]
        assert len(_cold(store, other)) < 2
