"""Files whose times are yet to come: of a clock that was ahead, and was set back."""

import os
import threading
from pathlib import Path

import pytest

from kit.storage import Story, disk_usage, files_in, open_cold, set_budget
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.eviction.keep import Clock

KIB = 1024
PAGE = 64 * KIB
LIMIT = 1200 * KIB
HOUR = 3600 * 10**9


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _set_ahead(directory: Path) -> None:
    ahead = Clock().now() + HOUR
    for path in files_in(directory):
        os.utime(path, ns=(ahead, ahead))


def test_a_budget_is_lowered_in_a_directory_whose_times_are_yet_to_come(
    tmp_path: Path, story: Story
) -> None:
    tier = open_cold(tmp_path)
    for number in range(1, 11):
        tier.write(story.page(number), Clock().now(), story.document)
    _set_ahead(tmp_path)
    set_budget(tmp_path, Budget(500 * KIB, "quota"))
    settling = threading.Thread(target=tier.settle, daemon=True)
    settling.start()
    settling.join(20)
    assert not settling.is_alive(), "it holds the directory, and everybody waits for it"
    assert 0 < tier.usage().pages < 10
    assert disk_usage(tmp_path) <= tier.usage().nbytes <= 500 * KIB


def test_a_clock_that_is_set_back_does_not_keep_new_pages_off_a_full_disk(
    tmp_path: Path, story: Story
) -> None:
    tier = open_cold(tmp_path, LIMIT)
    for number in range(1, 30):
        tier.write(story.page(number), Clock().now(), story.document)
    _set_ahead(tmp_path)
    tier.close()
    again, fresh, clock = open_cold(tmp_path, LIMIT), Story("fresh", nbytes=PAGE), Clock()
    results = []
    for number in range(1, 30):
        results.append(again.write(fresh.page(number), clock.now(), fresh.document))
        again.settle()
    assert results[-5:] == ["written"] * 5
