"""Several tiers on one directory: what one does, the others know, whatever the clock says."""

import errno
import os
import threading
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
    set_budget,
)
from kit.units import DAY, KIB
from omlx_cache_storage.cold.disk import StrPath
from omlx_cache_storage.cold.small_files import Budget
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import Clock

PAGE = 64 * KIB
LIMIT = 1200 * KIB
HOUR = 3600 * 10**9


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _write(tier: ColdTier, story: Story, *numbers: int, at: int = DAY) -> list[str]:
    return [tier.write(story.page(number), at, story.document) for number in numbers]


def _numbers(tier: ColdTier, story: Story) -> list[int]:
    return [number for number in range(1, 60) if tier.info(story.id(number)) is not None]


def test_asking_in_vain_is_one_small_read(tmp_path: Path, story: Story) -> None:
    disk = FaultyDisk()
    one, two = open_cold(tmp_path), open_cold(tmp_path, fs=disk)
    _write(one, story, 1)
    two.refresh()
    disk.calls.clear()
    assert not two.refresh()
    assert disk.calls == {"peek": 1}


def test_what_one_is_writing_counts_for_itself_and_for_the_others(tmp_path: Path) -> None:
    disk = FaultyDisk()
    one, two = open_cold(tmp_path, LIMIT, fs=disk), open_cold(tmp_path, LIMIT)
    story, large = Story(nbytes=PAGE), 8 * PAGE
    _write(one, story, 1)
    disk.reached.clear()
    disk.gate.clear()
    before = one.usage().nbytes
    with ThreadPoolExecutor(1) as thread:
        try:
            page = story.page(2, nbytes=large)
            written = thread.submit(one.write, page, DAY + 9, story.document)
            assert disk.reached.wait(30)
            assert one.usage().nbytes >= before + large
            _write(two, story, *range(3, 40))
            assert disk_usage(tmp_path) <= two.usage().nbytes <= LIMIT
        finally:
            disk.gate.set()
        assert written.result(30) == "written"
    assert disk_usage(tmp_path) <= LIMIT
    two.refresh()
    assert two.usage().nbytes == one.usage().nbytes <= LIMIT


def test_what_another_used_does_not_leave_first(tmp_path: Path) -> None:
    one, two = open_cold(tmp_path, LIMIT), open_cold(tmp_path, LIMIT)
    old, newer = Story("old", nbytes=PAGE), Story("newer", nbytes=PAGE)
    _write(one, old, 1, 2, 3, 4, at=DAY)
    _write(one, newer, 1, 2, 3, at=DAY + 1)
    two.refresh()
    two.touch(old.ids(1, 2, 3, 4), DAY + 2)
    two.settle()
    fresh = Story("fresh", nbytes=PAGE)
    _write(one, fresh, *range(1, 9), at=DAY + 3)
    assert _numbers(one, old) == [1, 2, 3, 4]
    assert len(_numbers(one, newer)) < 3
    assert _numbers(one, newer) == list(range(1, len(_numbers(one, newer)) + 1))


def test_a_process_with_a_lower_limit_stops_writing_and_deletes_nothing(
    tmp_path: Path, story: Story
) -> None:
    one = open_cold(tmp_path, 8192 * KIB)
    _write(one, story, *range(1, 11))
    two = open_cold(tmp_path, 500 * KIB)
    other = Story("other", nbytes=PAGE)
    assert _write(two, other, 1, at=DAY + 1) == ["refused"]
    two.settle()
    assert _numbers(two, story) == list(range(1, 11))
    assert two.usage().limit_bytes == one.usage().limit_bytes == 8192 * KIB
    assert two.usage().state == "ok"
    one.discard(story.ids(*range(2, 11)))
    assert _write(two, other, 1, at=DAY + 1) == ["written"]


@pytest.mark.parametrize(
    ("mounted_so", "said"), [(True, "Read-only"), (False, "Permission denied")]
)
def test_a_directory_that_may_only_be_read_serves_what_it_has(
    tmp_path: Path, story: Story, mounted_so: bool, said: str
) -> None:
    class ReadOnly(FaultyDisk):
        writable = False

        def is_read_only(self, path: StrPath) -> bool:
            return mounted_so and not self.writable

        def is_writable(self, path: StrPath) -> bool:
            return self.writable

    one = open_cold(tmp_path)
    _write(one, story, 1, 2)
    one.close()
    disk = ReadOnly()
    disk.fail = dict.fromkeys(("reserve", "write", "remove", "set_times"), errno.EACCES)
    two = open_cold(tmp_path, fs=disk)
    assert read_cold(two, story.id(2)) == expected_payload(story.id(2), PAGE)
    scans = disk.calls["scan"]
    with pytest.raises(OSError, match=said):
        _write(two, story, 3)
    two.settle()
    assert disk.calls["scan"] == scans, "it is read once"
    assert _numbers(two, story) == [1, 2]
    disk.writable = True
    disk.fail = {}
    assert _write(two, story, 3) == ["written"]
    assert _numbers(two, story) == [1, 2, 3]


def test_a_page_whose_deleter_was_killed_before_it_told_is_gone_for_all(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = open_cold(tmp_path), open_cold(tmp_path)
    _write(one, story, 1, 2)
    two.refresh()

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(one._files, "tidy", killed)
    with pytest.raises(KeyboardInterrupt):
        one.discard(story.ids(2))
    one.close()
    two.settle()
    assert _numbers(two, story) == [1]
    assert disk_usage(tmp_path) <= two.usage().nbytes
    assert two.usage().nbytes == open_cold(tmp_path).usage().nbytes
    two.check_integrity()


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
