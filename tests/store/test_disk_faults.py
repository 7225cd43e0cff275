"""A store on a failing disk: requests miss, memory goes on, the state is visible, it recovers."""

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    SetTime,
    Story,
    commit,
    commit_to_disk,
    disk_usage,
    fetch,
    files_in,
    is_right,
    open_store,
    state_of,
    store_page,
)
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache_daemon.changing import change_budget
from omlx_cache_storage.cold.small_files import Budget
from omlx_cache_storage.errors import PageError


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
@pytest.mark.parametrize("operation", ["write", "publish", "make_directory", "sync_directory"])
def test_a_disk_that_refuses_pages_costs_no_hit_and_recovers(
    tmp_path: Path, disk: FaultyDisk, story: Story, operation: str, code: int, words: str
) -> None:
    with open_store(tmp_path, disk, durability="fsync") as store:
        disk.fail[operation] = code
        assert commit(store, story, 1, 2, 3) == [True, True, True]
        assert not store.flush(30)
        assert not store.flush(30)
        assert state_of(store) == f"failing: {words}"
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2, 3))
        assert files_in(tmp_path, ".tmp-*") == []
        assert disk_usage(tmp_path) <= store.stats().cold.nbytes
        store.cold.check_integrity()
        disk.fail.clear()
        assert store.flush(30)
        assert state_of(store) == "ok"
        _forget_memory(store)
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2, 3))


@pytest.mark.parametrize(
    ("failing", "free", "why"), [("write", 1 << 30, "No space left"), ("none", 0, "it is full")]
)
def test_the_log_has_a_line_when_a_disk_is_full_and_one_when_it_is_not(
    tmp_path: Path, disk: FaultyDisk, story: Story, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, failing: str, free: int, why: str,
) -> None:  # fmt: skip
    with open_store(tmp_path, disk, min_free_bytes=1) as store:
        disk.fail[failing] = errno.ENOSPC
        monkeypatch.setattr(disk, "free_bytes", lambda path: free)
        commit(store, story, 1, 2, 3)
        assert not store.flush(30)
        monkeypatch.undo()
        disk.fail.clear()
        assert store.flush(30)
    said = [record.message for record in caplog.records if record.name.endswith(".writer")]
    assert [f"no page is written to the disk: {why}" in said[0], *said[1:]] == [
        True, "pages are written to the disk again",
    ]  # fmt: skip


def test_a_disk_with_room_for_small_pages_only_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path, hot_bytes=16384 * KIB) as store:
        change_budget(tmp_path, lambda known: Budget(1024 * KIB, "quota"))
        for number in range(3):
            assert store_page(store, Story(f"large {number}", nbytes=1200 * KIB).page(1))
            assert not store.flush(30)
            assert store_page(store, Story(f"small {number}").page(1))
            store.flush(30)
            assert Story(f"small {number}").id(1) in store.cold
        change_budget(tmp_path, lambda known: Budget(16384 * KIB, "quota"))
        assert store.flush(30)
    said = [line for line in caplog.messages if "to the disk" in line]
    assert ["its budget has no room" in said[0], *said[1:]] == [
        True, "pages are written to the disk again",
    ]  # fmt: skip


@pytest.mark.parametrize("operation", ["open", "read", "read_into"])
def test_a_disk_that_cannot_be_read_is_a_miss_and_keeps_its_pages(
    tmp_path: Path, disk: FaultyDisk, story: Story, operation: str, time: SetTime
) -> None:
    with open_store(tmp_path, disk) as store:
        commit_to_disk(store, story, 1)
        _forget_memory(store)
        disk.fail[operation] = errno.EIO
        with pytest.raises(PageError):
            fetch(store, story.id(1))
        assert state_of(store) == "failing: Input/output error"
        disk.fail.clear()
        time.pass_by(60)
        assert is_right(store, story.id(1), story.nbytes)
        assert state_of(store) == "ok"


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
            assert store.writer.flush(30)
        assert store_page(store, story.page(20))
        assert is_right(store, story.id(20), 16 * KIB)
        disk.fail.clear()
