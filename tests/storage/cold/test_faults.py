"""A disk that refuses: nothing wrong is served, nothing is left behind, and it recovers."""

import errno
import shutil
import stat
import threading
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    SetTime,
    Story,
    disk_usage,
    expected_payload,
    files_in,
    open_cold,
    read_cold,
)
from omlx_cache_storage.cold.deletion import RETRIED
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import PageUnreadable
from omlx_cache_storage.page import Page

KIB = 1024
BIG = 2**30


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    return SetTime(monkeypatch)


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


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("operation", ["write", "publish", "make_directory", "sync_directory"])
def test_a_failed_write_leaves_nothing_and_the_next_one_recovers(
    tier: ColdTier, disk: FaultyDisk, story: Story, operation: str, code: int
) -> None:
    used = tier.usage().nbytes
    disk.fail[operation] = code
    with pytest.raises(OSError, match=r".") as caught:
        _write(tier, story, 2)
    assert caught.value.errno == code
    assert story.id(2) not in tier
    assert files_in(tier.directory, ".tmp-*") == []
    assert len(files_in(tier.directory)) == 1
    assert tier.usage().state.startswith("failing: ")
    assert tier.refuses_writes
    assert disk_usage(tier.directory) <= tier.usage().nbytes <= used + 16 * KIB
    tier.check_integrity()
    _is_there(tier, story, 1)
    assert tier.usage().state.startswith("failing: ")
    disk.fail.clear()
    assert _write(tier, story, 2)
    assert tier.usage().state == "ok"
    _is_there(tier, story, 2)


def test_a_torn_write_is_never_published(tier: ColdTier, disk: FaultyDisk, story: Story) -> None:
    for length in (0, 7, 16 * KIB - 1, 16 * KIB, 18 * KIB):
        disk.torn_at = length
        with pytest.raises(OSError, match="went away"):
            _write(tier, story, 2)
    assert files_in(tier.directory, ".tmp-*") == []
    assert len(files_in(tier.directory)) == 1
    disk.torn_at = None
    assert _write(tier, story, 2)


def test_an_error_that_is_no_disk_error_leaves_nothing_either(
    tier: ColdTier, disk: FaultyDisk, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = tier.usage().nbytes

    def explode(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(disk, "publish", explode)
    with pytest.raises(MemoryError):
        _write(tier, story, 2)
    assert tier.usage().nbytes == used
    tier.check_integrity()


def test_a_payload_of_another_size_than_the_page_says_is_refused(
    tier: ColdTier, story: Story
) -> None:
    with pytest.raises(ValueError, match="a payload of 3 bytes"):
        tier.write(Page(story.meta(2), b"abc"), 10**18, {})
    assert story.id(2) not in tier


@pytest.mark.parametrize("operation", ["open", "read", "read_into"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_failed_read_is_a_miss_that_keeps_the_page(
    tier: ColdTier, disk: FaultyDisk, story: Story, operation: str, code: int, time: SetTime
) -> None:
    disk.fail[operation] = code
    with pytest.raises(PageUnreadable):
        read_cold(tier, story.id(1))
    assert tier.usage().state.startswith("failing: ")
    assert tier.usage().corrupt_pages == 0
    assert not tier.refuses_writes
    disk.fail.clear()
    time.pass_by(60)
    _is_there(tier, story, 1)
    assert tier.usage().state == "ok"


def test_a_removed_file_is_a_miss_and_can_be_written_again(tier: ColdTier, story: Story) -> None:
    files_in(tier.directory)[0].unlink()
    with pytest.raises(PageUnreadable, match="is gone"):
        read_cold(tier, story.id(1))
    assert story.id(1) not in tier
    tier.check_integrity()
    assert _write(tier, story, 1)
    _is_there(tier, story, 1)


def test_a_file_that_was_gone_and_that_another_process_wrote_again_is_not_written_twice(
    tier: ColdTier, story: Story
) -> None:
    files_in(tier.directory)[0].unlink()
    with pytest.raises(PageUnreadable, match="is gone"):
        read_cold(tier, story.id(1))
    other = open_cold(tier.directory)
    assert other.write(story.page(1), 10**18, story.document) == "written"
    assert tier.write(story.page(1), 10**18, story.document) == "present"
    _is_there(tier, story, 1)


def test_a_directory_removed_while_running_is_noticed_and_made_again(
    tier: ColdTier, story: Story
) -> None:
    shutil.rmtree(tier.directory)
    tier.settle()
    assert tier.usage().pages == 0
    assert tier.take_missing() == story.ids(1)
    assert tier.take_missing() == []
    shutil.rmtree(tier.directory)
    assert _write(tier, story, 2)
    _is_there(tier, story, 2)
    assert disk_usage(tier.directory) <= tier.usage().nbytes
    assert stat.S_IMODE(tier.directory.stat().st_mode) == 0o700
    tier.check_integrity()


def test_a_directory_replaced_by_another_cache_is_read_anew(
    tier: ColdTier, story: Story, tmp_path: Path
) -> None:
    other = open_cold(tmp_path / "other")
    assert _write(other, story, 2)
    shutil.rmtree(tier.directory)
    (tmp_path / "other").rename(tier.directory)
    tier.settle()
    assert tier.take_missing() == story.ids(1)
    _is_there(tier, story, 2)


def test_a_directory_that_appears_later_is_indexed_then(tmp_path: Path, story: Story) -> None:
    """An external disk that is mounted after the start."""
    earlier = open_cold(tmp_path / "away")
    assert _write(earlier, story, 1)
    (tmp_path / "mount").write_text("not a directory")
    tier = open_cold(tmp_path / "mount" / "cold")
    assert tier.usage().state.startswith("unavailable: ")
    with pytest.raises(OSError, match="directory"):
        _write(tier, story, 2)
    tier.settle()
    assert tier.usage().pages == 0
    (tmp_path / "mount").unlink()
    (tmp_path / "mount").mkdir()
    (tmp_path / "away").rename(tmp_path / "mount" / "cold")
    tier.settle()
    assert tier.usage().state == "ok"
    _is_there(tier, story, 1)
    tier.check_integrity()


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


def test_a_read_only_directory_is_served_and_its_state_is_visible(
    tier: ColdTier, disk: FaultyDisk, story: Story
) -> None:
    for operation in ("write", "publish", "set_times", "remove", "remove_directory"):
        disk.fail[operation] = errno.EROFS
    restarted = open_cold(tier.directory, BIG, fs=disk)
    _is_there(restarted, story, 1)
    restarted.touch(story.ids(1))
    restarted.settle()
    with pytest.raises(OSError, match="Read-only"):
        _write(restarted, story, 2)
    assert restarted.usage().state == "failing: Read-only file system"


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


def test_readers_are_not_held_up_by_a_slow_write(
    tier: ColdTier, disk: FaultyDisk, story: Story
) -> None:
    disk.gate.clear()
    disk.reached.clear()
    writer = threading.Thread(target=_write, args=(tier, story, 2))
    writer.start()
    assert disk.reached.wait(30)
    _is_there(tier, story, 1)
    tier.touch(story.ids(1))
    assert tier.discard(story.ids(9)) == 0
    assert tier.usage().pages == 1
    disk.gate.set()
    writer.join(30)
    _is_there(tier, story, 2)


def test_a_directory_that_can_be_had_again_is_ok_without_a_write(
    tier: ColdTier, disk: FaultyDisk
) -> None:
    disk.fail["identity"] = errno.EIO
    tier.settle()
    assert tier.usage().state == "unavailable: Input/output error"
    disk.fail.clear()
    tier.settle()
    assert tier.usage().state == "ok"


def test_of_many_files_that_stay_a_few_are_tried_again_at_a_time(
    tier: ColdTier, disk: FaultyDisk, story: Story
) -> None:
    numbers = range(1, 61)
    for number in numbers:
        _write(tier, story, number)
    used = tier.usage().nbytes
    disk.fail["remove"] = errno.EIO
    tier.discard(story.ids(*numbers))
    calls = disk.calls["remove"]
    tier.settle()
    assert disk.calls["remove"] - calls <= RETRIED
    assert tier.usage().nbytes == used
    disk.fail.clear()
    tier.settle()
    tier.settle()
    assert files_in(tier.directory) == []
    tier.check_integrity()
