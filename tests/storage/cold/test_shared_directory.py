"""Several tiers on one directory: what one does, the others know."""

import contextlib
import errno
import os
from collections.abc import Iterator
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
from omlx_cache_storage.cold.changes import Cancelled
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.ledger import Ledger, LedgerBusy, ledger_bytes
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import Clock

KIB = 1024
PAGE = 64 * KIB
LIMIT = 1200 * KIB
BIG = 1 << 30
DAY = 10**18


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _write(tier: ColdTier, story: Story, *numbers: int, at: int = DAY) -> list[str]:
    return [tier.write(story.page(number), at, story.document) for number in numbers]


def _numbers(tier: ColdTier, story: Story) -> list[int]:
    return [number for number in range(1, 60) if tier.info(story.id(number)) is not None]


def test_asking_in_vain_is_one_small_read(tmp_path: Path, story: Story) -> None:
    class Reads(FaultyDisk):
        def peek(self, fd: int, length: int, offset: int) -> bytes:
            self._enter("peek")
            return super().peek(fd, length, offset)

    disk = Reads()
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


def test_a_page_opened_by_one_stays_readable_when_the_other_deletes_it(
    tmp_path: Path, story: Story
) -> None:
    one, two = open_cold(tmp_path), open_cold(tmp_path)
    _write(one, story, 1)
    two.refresh()
    with two.reading(story.id(1)) as reader:
        one.discard(story.ids(1))
        payload = bytearray(reader.meta.nbytes)
        reader.read_into([payload])
    assert payload == expected_payload(story.id(1), PAGE)


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


def test_a_clock_that_is_behind_makes_nobody_s_pages_worth_less_for_long(tmp_path: Path) -> None:
    class Behind(Clock):
        def now(self) -> int:
            return super().now() - 3600 * 10**9

    one, two = open_cold(tmp_path, LIMIT), open_cold(tmp_path, LIMIT, clock=Behind())
    mine, others = Story("mine", nbytes=PAGE), Story("others", nbytes=PAGE)
    clock = Clock()
    _write(one, mine, 1, 2, at=clock.now())
    two.refresh()
    _write(two, others, 1, 2, at=Behind().now())
    one.refresh()
    assert _numbers(one, others) == _numbers(two, others) == [1, 2]
    assert read_cold(two, mine.id(1)) == expected_payload(mine.id(1), PAGE)


def test_a_directory_that_may_only_be_read_serves_what_it_has(tmp_path: Path, story: Story) -> None:
    class ReadOnly(FaultyDisk):
        writable = False

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
    with pytest.raises(OSError, match="Read-only"):
        _write(two, story, 3)
    two.settle()
    assert disk.calls["scan"] == scans, "it is read once"
    assert _numbers(two, story) == [1, 2]
    disk.writable = True
    disk.fail = {}
    assert _write(two, story, 3) == ["written"]
    assert _numbers(two, story) == [1, 2, 3]


def test_a_time_of_its_own_a_process_takes_back_and_no_other(tmp_path: Path, story: Story) -> None:
    one, two = open_cold(tmp_path), open_cold(tmp_path)
    _write(one, story, 1, at=DAY)
    two.refresh()
    one.touch(story.ids(1), DAY + 9)
    one.settle()
    assert files_in(tmp_path)[0].stat().st_mtime_ns == DAY + 9
    one.touch(story.ids(1), DAY + 5, since_ns=DAY + 9)
    one.settle()
    assert files_in(tmp_path)[0].stat().st_mtime_ns == DAY + 5
    two.touch(story.ids(1), DAY + 7)
    two.settle()
    one.touch(story.ids(1), DAY + 6, since_ns=DAY + 9)
    one.settle()
    assert files_in(tmp_path)[0].stat().st_mtime_ns == DAY + 7


def test_a_directory_that_always_changes_faster_than_it_is_read_is_read_while_others_wait(
    tmp_path: Path, story: Story
) -> None:
    one = open_cold(tmp_path)
    assert _write(one, story, 1, 2) == ["written"] * 2
    ledger = Ledger(tmp_path, FileSystem())
    ledger.open(ledger_bytes(BIG))

    class Overtaken(FaultyDisk):
        def scan(self, path: StrPath) -> Iterator[os.DirEntry[str]]:
            # Somebody tells more than the ledger holds, unless the directory is held.
            with contextlib.suppress(LedgerBusy), ledger.held(0.0):
                ledger.append([Cancelled("x" * ledger.nbytes)])
            return super().scan(path)

    two = open_cold(tmp_path, fs=Overtaken())
    assert _numbers(two, story) == [1, 2]
    assert _write(two, story, 3) == ["written"]
    ledger.close()


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
