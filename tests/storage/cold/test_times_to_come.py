"""Files whose time has not come yet: a clock was ahead, or somebody set them."""

import contextlib
import os
import time
from pathlib import Path

from kit.storage import Story, disk_usage, files_in
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.small_files import write_budget
from omlx_cache_storage.cold.tier import ColdTier

PAGE = 128 * 1024
BIG = 2**24


def _filled(directory: Path, story: Story) -> ColdTier:
    tier = ColdTier(directory, BIG)
    tier.open()
    for page in story.pages(1, 2, 3, 4, 5, 6):
        assert tier.write(page, time.time_ns(), story.document) == "written"
    later = time.time() + 3600
    for path in files_in(directory):
        os.utime(path, (later, later))
    return tier


def test_they_leave_for_a_smaller_budget_as_others_do(tmp_path: Path) -> None:
    with contextlib.closing(_filled(tmp_path, Story(nbytes=PAGE))):
        write_budget(tmp_path, Budget(5 * PAGE, "quota"))
        with contextlib.closing(ColdTier(tmp_path, BIG)) as second:
            second.open()
            assert 0 < second.usage().pages < 5
            assert disk_usage(tmp_path) <= 5 * PAGE


def test_they_count_as_used_now(tmp_path: Path) -> None:
    _filled(tmp_path, Story(nbytes=PAGE)).close()
    with contextlib.closing(ColdTier(tmp_path, BIG)) as tier:
        tier.open()
        tier.settle()
        assert all(path.stat().st_mtime <= time.time() for path in files_in(tmp_path))
