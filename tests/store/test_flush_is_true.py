"""`flush` is True when each page that was accepted before has been on the disk since."""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    Story,
    bytes_of,
    commit,
    files_in,
    open_cold,
    open_store,
    read_cold,
    store_page,
)
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache_storage.cold.disk import Durability, StrPath
from omlx_cache_storage.page import Page


def _on_disk(store: BlockStore, story: Story, *numbers: int) -> list[bool]:
    return [store.cold.info(page) is not None for page in story.ids(*numbers)]


@pytest.mark.parametrize("policy", ["through", "lazy"])
@pytest.mark.parametrize("wait_seconds", [2, 86400])
@pytest.mark.parametrize("queue", [64 * KIB, 1024 * KIB])
def test_what_several_threads_flushed_is_whole_on_the_disk(
    tmp_path: Path, policy: str, wait_seconds: int, queue: int
) -> None:
    blocks, nbytes = 20, 32 * KIB
    options = {"write_policy": policy, "commit_wait_seconds": wait_seconds, "queue_bytes": queue}
    untrue: list[str] = []
    flushed: list[str] = []
    with open_store(tmp_path, cold_bytes=64 * 1024 * KIB, **options) as store:

        def work(name: str) -> None:
            for turn in range(4):
                story = Story(f"{name}-{turn}", nbytes=nbytes)
                numbers = range(1, blocks + 1)
                if all(commit(store, story, *numbers)) and store.flush(60):
                    flushed.append(name)
                    if not all(_on_disk(store, story, *numbers)):
                        untrue.append(f"{name}-{turn}")

        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert store.flush(60)
    # Who waits two seconds only may have lost a page of each sequence to a busy machine.
    assert flushed or wait_seconds < 60
    assert untrue == []


@contextmanager
def _pages_that_a_failing_disk_lost(directory: Path, story: Story) -> Iterator[BlockStore]:
    """Open a store whose disk works again, after pages 3 and 4 of a story left memory unwritten."""
    other, disk = Story("other", nbytes=16 * KIB), FaultyDisk()
    with open_store(directory, disk, hot_bytes=64 * KIB, queue_bytes=64 * KIB) as store:
        disk.fail["write"] = errno.EIO
        assert all(commit(store, story, 1, 2, 3, 4))
        assert not store.flush(30)
        assert all(commit(store, other, 1, 2))
        disk.fail.clear()
        assert not store.flush(30)
        yield store


def test_a_page_that_a_failing_disk_pushed_out_of_memory_makes_flush_false_until_it_is_stored(
    tmp_path: Path,
) -> None:
    story = Story(nbytes=16 * KIB)
    with _pages_that_a_failing_disk_lost(tmp_path, story) as store:
        assert store.stats().writer.dropped_pages == 2
        lost = [n for n in (1, 2, 3, 4) if not any(_on_disk(store, story, n))]
        assert lost == [3, 4]
        commit(store, story, 3, 4)
        assert store.flush(30)
        assert all(_on_disk(store, story, 1, 2, 3, 4))


def test_what_was_cleared_is_owed_no_longer(tmp_path: Path) -> None:
    story = Story(nbytes=16 * KIB)
    with _pages_that_a_failing_disk_lost(tmp_path, story) as store:
        store.clear(story.namespace)
        assert store.flush(30)


def test_a_page_larger_than_the_queue_is_written(tmp_path: Path) -> None:
    story = Story(nbytes=128 * KIB)
    with open_store(tmp_path, queue_bytes=64 * KIB, commit_wait_seconds=86400) as store:
        assert all(commit(store, story, 1, 2, 3))
        assert store.flush(30)
        assert all(_on_disk(store, story, 1, 2, 3))


def test_a_page_that_leaves_the_disk_right_after_it_was_published_is_written_again(
    tmp_path: Path,
) -> None:
    story, disk, evicted = Story(), FaultyDisk(), list[int]()
    with open_store(tmp_path, disk) as store:

        def evict(directory: StrPath, _: Durability) -> None:
            if files_in(Path(directory)) and not evicted:
                evicted.append(1)
                store.delete({story.id(1): 1}, disk_only=True)

        disk.each["sync_directory"] = evict
        commit(store, story, 1)
        assert store.flush(30)
        assert evicted
        assert all(_on_disk(store, story, 1))


def test_a_page_that_is_stored_again_while_its_predecessor_is_written_is_the_one_that_stays(
    tmp_path: Path,
) -> None:
    story, disk = Story(), FaultyDisk()
    with open_store(tmp_path, disk) as store:
        disk.reached.clear()
        disk.gate.clear()
        misfit = Page(story.meta(1), bytes(story.nbytes))
        assert store_page(store, misfit)
        assert disk.reached.wait(30)
        store.forget(story.id(1))
        assert store_page(store, story.page(1))
        disk.gate.set()
        assert store.flush(30)
        assert read_cold(store.cold, story.id(1)) == bytes_of(story.page(1))
    assert len(files_in(tmp_path)) == 1


def test_what_is_stored_while_its_namespace_is_cleared_is_written_by_the_next_flush(
    tmp_path: Path,
) -> None:
    story = Story()

    def publish(temporary: StrPath, final: StrPath) -> None:
        if Path(temporary).is_dir():
            # Between the end of memory's pages and the end of the disk's.
            commit(store, story, 1, 2, 3)

    disk = FaultyDisk()
    disk.each["publish"] = publish
    with open_store(tmp_path, disk) as store:
        commit(store, story, 1, 2)
        assert store.flush(30)
        assert store.clear(story.namespace) == 2
        assert store.flush(30)
        assert all(_on_disk(store, story, 1, 2, 3))
        assert len(files_in(tmp_path)) == 3


def test_a_cleared_namespace_is_served_no_more_when_the_disk_deletes_nothing(
    tmp_path: Path,
) -> None:
    story, disk = Story(), FaultyDisk()
    with open_store(tmp_path, disk) as store:
        commit(store, story, 1, 2)
        assert store.flush(30)
        disk.fail["remove"] = errno.EACCES
        assert store.clear(story.namespace) == 0
        assert store.find(story.id(1)) is None
        # As after kill -9: nothing of what this process knows is left.
        again = open_cold(tmp_path)
        try:
            assert again.usage().pages == 0
            assert files_in(tmp_path) == []
            assert not list(tmp_path.glob(".cleared-*"))
        finally:
            again.close()
        disk.fail.clear()
        assert store.flush(30)
        store.cold.check_integrity()


def test_a_namespace_that_is_cleared_while_its_directory_is_away_is_not_served_when_it_is_back(
    tmp_path: Path,
) -> None:
    story, directory = Story(), tmp_path / "cold"
    with open_store(directory) as store:
        assert all(commit(store, story, 1, 2))
        assert store.flush(30)
        directory.rename(tmp_path / "away")
        assert store.writer.settle(30)
        store.clear(story.namespace)
        (tmp_path / "away").rename(directory)
        assert store.writer.settle(30)
        assert not any(_on_disk(store, story, 1, 2))
    assert files_in(directory) == []


def test_what_the_disk_gives_up_for_room_is_not_written_back(tmp_path: Path) -> None:
    story = Story()
    with open_store(tmp_path) as store:
        assert all(commit(store, story, 1, 2, 3))
        assert store.flush(30)
        stamps = {held.id: held.stamp_ns for held in store.hot.entries()}
        store.delete(stamps, disk_only=True)
        assert all(commit(store, Story("other"), 1))
        assert store.writer.flush(30)
        assert store.writer.flush(30)
        assert not any(_on_disk(store, story, 1, 2, 3))
