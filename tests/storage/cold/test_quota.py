"""A budget that is changed from outside counts at once for the stores that run."""

import os
import subprocess
import sys
from pathlib import Path

from kit.storage import Story, disk_usage, open_cold, set_budget
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.small_files import read_budget
from omlx_cache_storage.cold.tier import ColdTier

KIB = 1024
LIMIT = 2048 * KIB


def _filled(directory: Path, name: str = "one") -> ColdTier:
    tier = open_cold(directory, LIMIT)
    story = Story(name, nbytes=64 * KIB)
    for number in range(1, 9):
        assert tier.write(story.page(number), 10**18 + number, {}) == "written"
    return tier


def test_stores_that_run_keep_to_a_smaller_budget_from_their_next_idle_moment_on(
    tmp_path: Path,
) -> None:
    tiers = [_filled(tmp_path), _filled(tmp_path, "two")]
    limit = disk_usage(tmp_path) // 2
    set_budget(tmp_path, Budget(limit, "quota"))
    for tier in tiers:
        tier.settle()
        tier.check_integrity()
        assert disk_usage(tmp_path) <= tier.usage().nbytes <= limit == tier.usage().limit_bytes
        assert tier.usage().pages > 0
        tier.close()


def test_stores_that_run_keep_to_another_budget_from_their_next_write_on(tmp_path: Path) -> None:
    tier = _filled(tmp_path)
    small = disk_usage(tmp_path) // 2
    set_budget(tmp_path, Budget(small, "quota"))
    story = Story("next", nbytes=64 * KIB)
    tier.write(story.page(1), 10**18 + 100, {})
    assert disk_usage(tmp_path) <= small
    set_budget(tmp_path, Budget(2 * LIMIT, "quota"))
    # What a store was told itself still holds for what it writes.
    tier.write(story.page(2), 10**18 + 100, {})
    assert tier.usage().limit_bytes == 2 * LIMIT
    tier.close()


def test_a_directory_that_no_store_has_used_gets_a_budget_too(tmp_path: Path) -> None:
    set_budget(tmp_path, Budget(LIMIT, "quota"))
    assert [path.name for path in tmp_path.iterdir()] == ["budget.json"]


_ADD = """
import sys
from dataclasses import replace
from pathlib import Path
from omlx_cache_daemon.changing import change_budget
sys.stdin.read(1)
for turn in range(5):
    change_budget(Path(sys.argv[1]), lambda known: replace(known, nbytes=known.nbytes + 1))
"""


def test_changes_of_several_processes_at_once_are_all_kept(tmp_path: Path) -> None:
    tier = _filled(tmp_path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _ADD, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("g")
        process.stdin.close()
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    budget = read_budget(tmp_path)
    assert budget is not None
    assert budget.nbytes == LIMIT + 15
    tier.close()
