"""A disk that refuses: nothing wrong is served, what it leaves behind counts, and it recovers."""

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    Story,
    disk_usage,
    expected_payload,
    files_in,
    open_cold,
    read_cold,
)
from kit.units import DAY, KIB
from omlx_cache_storage.cold.tier import ColdTier


@pytest.fixture
def tier(tmp_path: Path, disk: FaultyDisk, story: Story) -> ColdTier:
    """A tier with one page on it, on a disk that can fail."""
    tier = open_cold(tmp_path / "cold", fs=disk, durability="fsync")
    _write(tier, story, 1)
    return tier


def _write(tier: ColdTier, story: Story, number: int) -> bool:
    return tier.write(story.page(number), 10**18 + number, story.document) == "written"


def _is_there(tier: ColdTier, story: Story, number: int) -> None:
    page = story.id(number)
    assert read_cold(tier, page) == expected_payload(page, story.nbytes)


def test_a_torn_write_is_never_published(tier: ColdTier, disk: FaultyDisk, story: Story) -> None:
    for length in (0, 7, 16 * KIB - 1, 16 * KIB, 18 * KIB):
        disk.torn_at = length
        with pytest.raises(OSError, match="went away"):
            _write(tier, story, 2)
    assert files_in(tier.directory, ".tmp-*") == []
    assert len(files_in(tier.directory)) == 1
    disk.torn_at = None
    assert _write(tier, story, 2)


@pytest.mark.parametrize("operation", ["scan", "identity"])
def test_a_disk_that_refuses_at_the_start_is_asked_again(
    tmp_path: Path, disk: FaultyDisk, story: Story, operation: str
) -> None:
    ready = open_cold(tmp_path / "cold")
    assert _write(ready, story, 1)
    disk.fail[operation] = errno.EMFILE
    tier = open_cold(tmp_path / "cold", fs=disk)
    assert tier.usage().state == "unavailable: Too many open files"
    disk.fail.clear()
    assert _write(tier, story, 2)
    assert tier.usage().pages == 2
    assert tier.usage().nbytes >= disk_usage(tmp_path / "cold")


def test_files_that_cannot_be_deleted_keep_counting(tmp_path: Path, disk: FaultyDisk) -> None:
    story = Story(nbytes=128 * KIB)
    limit = 3 * 152 * KIB + 80 * KIB
    tier = open_cold(tmp_path, limit, fs=disk)
    for number in (1, 2, 3):
        assert _write(tier, story, number)
    disk.fail["remove"] = errno.EACCES
    for number in (4, 5, 6):
        assert not _write(tier, story, number)
        assert disk_usage(tmp_path) <= tier.usage().nbytes <= limit
        tier.check_integrity()
    assert tier.usage().state == "full"
    disk.fail.clear()
    assert _write(tier, story, 7)
    assert tier.usage().state == "ok"
    assert disk_usage(tmp_path) <= tier.usage().nbytes <= limit
    tier.check_integrity()


def test_a_disk_without_free_space_evicts_rather_than_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: FaultyDisk
) -> None:
    story = Story(nbytes=128 * KIB)
    tier = open_cold(tmp_path, fs=disk, min_free_bytes=1024 * KIB)
    capacity = disk_usage(tmp_path) + 1024 * KIB + 4 * 152 * KIB
    monkeypatch.setattr(disk, "free_bytes", lambda path: capacity - disk_usage(tmp_path))
    for number in range(1, 12):
        assert _write(tier, story, number)
        assert capacity - disk_usage(tmp_path) >= 1024 * KIB
    assert 0 < tier.usage().pages < 5
    monkeypatch.setattr(disk, "free_bytes", lambda path: 0)
    pages = tier.usage().pages
    assert not _write(tier, story, 12)
    assert (tier.usage().state, tier.usage().pages) == ("full", pages)


def test_a_disk_without_files_is_said_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disk: FaultyDisk,
    caplog: pytest.LogCaptureFixture,
) -> None:
    story = Story()
    tier = open_cold(tmp_path, fs=disk, min_free_bytes=1)
    assert _write(tier, story, 1)
    for spare, room in ((0, "inodes"), (0, "inodes"), (1, "inodes"), (99, "ok"), (99, "ok")):
        monkeypatch.setattr(disk, "spare_files", lambda path, spare=spare: spare)
        tier.keep_free()
        assert tier.usage().room == room
    assert ["hardly a file (inode) left" in line for line in caplog.messages] == [True, False]
    assert caplog.messages[1].endswith(", and 99 files (inodes)")
    assert tier.usage().pages == 0


def test_pages_are_found_while_another_is_written(tmp_path: Path) -> None:
    story, disk = Story(), FaultyDisk()
    cold = open_cold(tmp_path, fs=disk)
    cold.write(story.page(1), 10**18, story.document)
    disk.reached.clear()
    disk.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        try:
            written = threads.submit(cold.write, story.page(2), 10**18, story.document)
            assert disk.reached.wait(30)
            assert threads.submit(cold.info, story.id(1)).result(5) is not None
        finally:
            disk.gate.set()
        assert written.result(30) == "written"


@pytest.mark.parametrize("is_read_anew", [False, True])
@pytest.mark.parametrize("operation", ["write", "publish"])
def test_a_torn_file_that_cannot_be_removed_counts_until_it_can(
    tmp_path: Path, operation: str, is_read_anew: bool
) -> None:
    story, disk = Story(nbytes=64 * KIB), FaultyDisk()
    tier = open_cold(tmp_path, fs=disk)
    assert tier.write(story.page(1), DAY, story.document) == "written"
    sound = tier.usage().nbytes
    disk.fail["remove"] = errno.EIO
    for number in (2, 3):
        if operation == "write":
            disk.torn_at = 40 * KIB
        else:
            disk.fail["publish"] = errno.EIO
        with pytest.raises(OSError, match=r"."):
            tier.write(story.page(number), DAY, story.document)
    assert len(files_in(tmp_path, ".tmp-*")) == 2
    assert tier.usage().nbytes >= sound + 80 * KIB
    assert tier.usage().nbytes >= disk_usage(tmp_path)
    tier.check_integrity()
    disk.fail.clear()
    disk.torn_at = None
    tier.sharing.is_lost = is_read_anew
    tier.settle()
    assert files_in(tmp_path, ".tmp-*") == []
    assert disk_usage(tmp_path) <= tier.usage().nbytes <= sound + 20 * KIB
    assert tier.write(story.page(2), DAY, story.document) == "written"
    tier.check_integrity()
