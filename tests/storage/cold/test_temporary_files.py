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
