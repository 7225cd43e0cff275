"""A store on real small disks that fill up, turn read-only or go away: misses, and then no more."""

import os
from pathlib import Path

import pytest

from kit.storage import SetTime, Story, commit, disk_usage, is_right, open_store, state_of
from kit.storage.mounts import small_disk

KIB = 1024
LIMIT = 800 * KIB
"""Room for eight pages of 64 KiB."""


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    return SetTime(monkeypatch)


def test_a_disk_that_turns_read_only_serves_what_it_has_and_takes_pages_again_later(
    tmp_path: Path,
) -> None:
    story = Story(nbytes=64 * KIB)
    with (
        small_disk(tmp_path / "disk", "size=32m") as disk,
        open_store(disk.path / "cold", cold_bytes=LIMIT, hot_bytes=4096 * KIB) as store,
    ):
        commit(store, story, *range(1, 9))
        assert store.flush(30)
        disk.remount("ro")
        commit(store, story, *range(9, 30))
        assert not store.flush(30)
        assert state_of(store) == "failing: Read-only file system"
        store.hot.discard(story.ids(*range(1, 9)))
        # Nothing is forgotten for pages that cannot be written anyway.
        assert all(is_right(store, page, story.nbytes) for page in story.ids(*range(1, 30)))
        disk.remount("rw")
        assert store.flush(30)
        assert state_of(store) == "ok"
        newer = Story("newer", nbytes=64 * KIB)
        commit(store, newer, 1)
        assert store.flush(30)
        assert newer.id(1) in store.cold
        assert disk_usage(disk.path / "cold") <= LIMIT


def test_a_disk_without_bytes_or_files_keeps_the_newest_and_every_flush_is_true(
    tmp_path: Path,
) -> None:
    with (
        small_disk(tmp_path / "disk", "size=3m,nr_inodes=30") as disk,
        open_store(disk.path / "cold", cold_bytes="1GiB") as store,
    ):
        for turn in range(6):
            story = Story(f"turn {turn}", nbytes=96 * KIB)
            commit(store, story, 1, 2, 3, 4, 5, 6)
            assert store.flush(30)
            assert state_of(store) == "ok"
            store.hot.discard(story.ids(1, 2, 3, 4, 5, 6))
            assert is_right(store, story.id(1), story.nbytes)
        writer = store.stats().writer
        assert writer.failed_pages == 0


def test_a_disk_that_others_fill_costs_the_pages_that_it_lacks_room_for_and_no_more(
    tmp_path: Path, time: SetTime
) -> None:
    story = Story(nbytes=64 * KIB)
    with (
        small_disk(tmp_path / "disk", "size=2m") as disk,
        open_store(disk.path / "cold", hot_bytes=8192 * KIB, queue_bytes=8192 * KIB) as store,
    ):
        with open(disk.path / "others", "wb") as others:
            os.posix_fallocate(others.fileno(), 0, os.statvfs(disk.path).f_bavail * 4096)
        commit(store, story, *range(1, 60))
        assert not store.flush(30)
        assert state_of(store) in ("full", "failing: No space left on device")
        writer = store.stats().writer
        assert writer.failed_pages <= 10
        assert all(is_right(store, page, story.nbytes) for page in story.ids(*range(1, 60)))
        (disk.path / "others").unlink()
        commit(store, Story("other"), 1)
        assert store.flush(30)
        assert state_of(store) == "ok"
