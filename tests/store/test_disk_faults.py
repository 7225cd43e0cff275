"""A store on a failing disk: requests miss, memory goes on, the state is visible, it recovers."""

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    SetTime,
    Story,
    commit,
    disk_usage,
    fetch,
    files_in,
    is_right,
    open_store,
    store_page,
)
from omlx_cache import BlockStore
from omlx_cache_storage.errors import PageError

KIB = 1024


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    return SetTime(monkeypatch)


def _state(store: BlockStore) -> str:
    cold = store.stats().cold
    assert cold is not None
    return cold.state


def _forget_memory(store: BlockStore) -> None:
    for entry in store.hot.entries():
        store.hot.discard([entry.meta.id])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "No space left on device"),
        (errno.EROFS, "Read-only file system"),
        (errno.EIO, "Input/output error"),
        (errno.EMFILE, "Too many open files"),
    ],
)
@pytest.mark.parametrize("operation", ["write", "publish"])
def test_a_disk_that_refuses_pages_costs_no_hit_and_recovers(
    tmp_path: Path, disk: FaultyDisk, story: Story, operation: str, code: int, words: str
) -> None:
    with open_store(tmp_path, disk) as store:
        disk.fail[operation] = code
        assert commit(store, story, 1, 2, 3) == [True, True, True]
        assert not store.flush(30)
        assert not store.flush(30)
        assert _state(store) == f"failing: {words}"
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2, 3))
        assert files_in(tmp_path, ".tmp-*") == []
        disk.fail.clear()
        assert store.flush(30)
        assert _state(store) == "ok"
        _forget_memory(store)
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2, 3))


def test_flush_is_false_when_the_write_that_it_waited_for_fails(
    tmp_path: Path, disk: FaultyDisk, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is under way when flush is called, and no longer in memory when it has failed."""
    with open_store(tmp_path, disk) as store:
        disk.gate.clear()
        disk.reached.clear()
        commit(store, story, 1)
        assert disk.reached.wait(30)
        store.hot.discard([story.id(1)])
        disk.fail["write"] = errno.ENOSPC
        assert store.writer is not None
        flush = store.writer.flush

        def open_the_gate_and_flush(timeout: float | None) -> bool:
            disk.gate.set()
            return flush(timeout)

        monkeypatch.setattr(store.writer, "flush", open_the_gate_and_flush)
        assert not store.flush(30)
        disk.fail.clear()
        assert store.flush(30)


def test_a_torn_write_is_a_miss_after_a_restart_not_a_page(
    tmp_path: Path, disk: FaultyDisk, story: Story
) -> None:
    with open_store(tmp_path, disk) as store:
        disk.torn_at = 17 * KIB
        commit(store, story, 1)
        assert not store.flush(30)
    with open_store(tmp_path) as store:
        assert store.find(story.id(1)) is None
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("operation", ["open", "read", "read_into"])
def test_a_disk_that_cannot_be_read_is_a_miss_and_keeps_its_pages(
    tmp_path: Path, disk: FaultyDisk, story: Story, operation: str, time: SetTime
) -> None:
    with open_store(tmp_path, disk) as store:
        commit(store, story, 1)
        assert store.flush()
        _forget_memory(store)
        disk.fail[operation] = errno.EIO
        with pytest.raises(PageError):
            fetch(store, story.id(1))
        assert _state(store) == "failing: Input/output error"
        disk.fail.clear()
        time.pass_by(60)
        assert is_right(store, story.id(1), story.nbytes)
        assert _state(store) == "ok"


@contextmanager
def _no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + 8, soft), hard))
    held: list[int] = []
    try:
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_descriptors_misses_and_recovers(tmp_path: Path, story: Story) -> None:
    with open_store(tmp_path) as store:
        commit(store, story, 1)
        assert store.flush()
        _forget_memory(store)
        with _no_descriptors_left():
            with pytest.raises(PageError, match="Too many open files"):
                fetch(store, story.id(1))
            commit(store, story, 2)
            assert not store.flush(30)
            assert _state(store) == "failing: Too many open files"
            assert is_right(store, story.id(2), story.nbytes)
        assert store.flush(30)
        assert is_right(store, story.id(1), story.nbytes)
        assert _state(store) == "ok"


def test_a_slow_disk_does_not_hold_up_commits_or_hot_reads(
    tmp_path: Path, disk: FaultyDisk, story: Story
) -> None:
    with open_store(tmp_path, disk, queue_bytes=8 * KIB) as store:
        disk.gate.clear()
        disk.reached.clear()
        assert all(commit(store, story, 1, 2, 3, 4, 5, 6))
        assert disk.reached.wait(30)
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2, 3, 4, 5, 6))
        writer = store.stats().writer
        assert writer is not None
        assert (writer.pending_pages, writer.dropped_pages) == (2, 0)
        assert not store.flush(0.01)
        disk.gate.set()
        assert store.flush(30)
        assert len(files_in(tmp_path)) == 6


def test_a_commit_returns_while_the_disk_hangs(
    tmp_path: Path, disk: FaultyDisk, story: Story
) -> None:
    with open_store(tmp_path, disk) as store, ThreadPoolExecutor(1) as thread:
        disk.gate.clear()
        try:
            assert thread.submit(commit, store, story, 1, 2, 3).result(10) == [True] * 3
        finally:
            disk.gate.set()
        assert store.flush(30)


def test_a_directory_removed_while_running_is_a_miss_and_is_filled_again(
    tmp_path: Path, story: Story
) -> None:
    cold = tmp_path / "cold"
    with open_store(cold) as store:
        commit(store, story, 1, 2)
        assert store.flush()
        shutil.rmtree(cold)
        assert is_right(store, story.id(1), story.nbytes)
        assert store.flush()
        # What memory still has is durable again, since flush says so.
        assert len(files_in(cold)) == 2
        shutil.rmtree(cold)
        _forget_memory(store)
        with pytest.raises(PageError):
            fetch(store, story.id(1))
        assert store.find(story.id(1)) is None
        assert commit(store, story, 1) == [True]
        assert store.flush()
        assert len(files_in(cold)) == 1
        assert store.cold is not None
        store.cold.check_integrity()


def test_a_store_on_no_disk_at_all_works_from_memory(tmp_path: Path, story: Story) -> None:
    (tmp_path / "file").write_text("in the way")
    with open_store(tmp_path / "file" / "cold") as store:
        assert _state(store).startswith("unavailable: ")
        assert commit(store, story, 1, 2) == [True, True]
        assert not store.flush(30)
        assert is_right(store, story.id(1), story.nbytes)
        (tmp_path / "file").unlink()
        (tmp_path / "file").mkdir()
        assert store.flush(30)
        assert _state(store) == "ok"
    assert len(files_in(tmp_path)) == 2


@pytest.mark.parametrize("wait_seconds", [2, 86400])
def test_dirty_pages_of_a_dead_disk_do_not_freeze_memory(
    tmp_path: Path, disk: FaultyDisk, wait_seconds: int
) -> None:
    """Write-back keeps what the disk lacks; not for ever when it will never take it."""
    story = Story(nbytes=16 * KIB)
    options = {"write_policy": "lazy", "hot_bytes": 64 * KIB, "queue_bytes": 64 * KIB}
    with open_store(tmp_path, disk, commit_wait_seconds=wait_seconds, **options) as store:
        disk.fail["write"] = errno.ENOSPC
        for number in range(1, 20):
            store_page(store, story.page(number))
            assert store.writer is not None
            assert store.writer.flush(30)
        assert store_page(store, story.page(20))
        assert is_right(store, story.id(20), 16 * KIB)
        disk.fail.clear()


def test_a_page_larger_than_the_disk_budget_stays_in_memory(tmp_path: Path) -> None:
    story = Story(nbytes=200 * KIB)
    with open_store(tmp_path, cold_bytes=200 * KIB) as store:
        assert commit(store, story, 1) == [True]
        assert not store.flush(30)
        assert _state(store) == "full"
        assert is_right(store, story.id(1), 200 * KIB)
        assert disk_usage(tmp_path) <= 200 * KIB


def test_a_commit_never_waits_for_a_disk_that_refuses(tmp_path: Path, disk: FaultyDisk) -> None:
    """Dirty pages stand in the way, and giving them all up would not make enough room."""
    story, other = Story(nbytes=16 * KIB), Story("other", nbytes=16 * KIB)
    options = {"write_policy": "lazy", "hot_bytes": 64 * KIB, "queue_bytes": 64 * KIB}
    with open_store(tmp_path, disk, commit_wait_seconds=86400, **options) as store:
        disk.fail["write"] = errno.ENOSPC
        for page in (other.page(1), *story.pages(1, 2, 3)):
            assert store_page(store, page, story.ids(1, 2, 3))
        assert not store.flush(30)
        assert not store.admit(32 * KIB, story.ids(1, 2, 3))
        assert store.find(other.id(1)) is not None
        disk.fail.clear()
