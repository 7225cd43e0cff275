"""A file that was being written and cannot be removed counts in the budget, and goes later."""

import contextlib
import errno
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, disk_usage, files_in, open_cold

KIB = 1024
DAY = 10**18


@pytest.mark.parametrize("operation", ["write", "publish"])
def test_a_torn_file_that_cannot_be_removed_counts_until_it_can(
    tmp_path: Path, operation: str
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
    tier.settle()
    assert files_in(tmp_path, ".tmp-*") == []
    assert disk_usage(tmp_path) <= tier.usage().nbytes <= sound + 20 * KIB
    assert tier.write(story.page(2), DAY, story.document) == "written"
    tier.check_integrity()


def test_a_document_that_cannot_be_removed_counts_too(tmp_path: Path) -> None:
    story, disk = Story(), FaultyDisk()
    tier = open_cold(tmp_path, fs=disk)
    disk.fail.update(publish=errno.EIO, remove=errno.EIO)
    with pytest.raises(OSError, match=r"."):
        tier.write(story.page(1), DAY, {"model": "x" * 100_000})
    assert len(files_in(tmp_path, ".tmp-*")) == 1
    assert tier.usage().nbytes >= max(100_000, disk_usage(tmp_path))
    disk.fail.clear()
    tier.settle()
    assert files_in(tmp_path, ".tmp-*") == []


def test_what_was_never_made_does_not_count(tmp_path: Path) -> None:
    """A disk mounted read-only refuses to delete what is not there."""
    story, disk = Story(), FaultyDisk()
    tier = open_cold(tmp_path, fs=disk)
    assert tier.write(story.page(1), DAY, story.document) == "written"
    used = tier.usage().nbytes
    disk.fail.update(reserve=errno.EROFS, remove=errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        tier.write(story.page(2), DAY, story.document)
    assert tier.usage().nbytes <= used + 8 * KIB, "a shard directory at most"


def test_files_that_stay_do_not_push_pages_out_beyond_the_budget(tmp_path: Path) -> None:
    story, disk = Story(nbytes=64 * KIB), FaultyDisk()
    limit = 700 * KIB
    tier = open_cold(tmp_path, limit, fs=disk)
    disk.fail.update(publish=errno.EIO, remove=errno.EIO)
    for number in range(1, 30):
        with contextlib.suppress(OSError):
            tier.write(story.page(number), DAY + number, story.document)
        assert disk_usage(tmp_path) <= tier.usage().nbytes <= limit
    disk.fail.clear()
    for number in range(30, 40):
        tier.write(story.page(number), DAY + number, story.document)
    assert story.id(39) in tier
    assert disk_usage(tmp_path) <= tier.usage().nbytes <= limit
