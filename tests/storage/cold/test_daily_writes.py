"""The bytes that a day may write: booked by the hour, kept over restarts, shared by processes."""

import errno
import os
import stat
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, HandClock
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import SMALLEST_BYTES, Ledger
from omlx_cache_storage.cold.shared_limits import WRITES_FILE, DailyWrites
from omlx_cache_storage.format.names import LEDGER_FILE

HOUR = 3600.0
LIMIT = 1_024_000
PAGE = 10_000


def daily_writes(directory: Path, clock: HandClock, fs: FileSystem | None = None) -> DailyWrites:
    ledger = Ledger(directory, FileSystem())
    ledger.open(SMALLEST_BYTES)
    made = DailyWrites(directory, ledger, LIMIT, fs or FileSystem(), clock)
    made.read()
    return made


def taken(of: DailyWrites, most: int = 1000, nbytes: int = PAGE) -> int:
    """Take until a page is refused; return how many were granted."""
    for count in range(most):
        if not of.take(nbytes):
            return count
    return most


def test_a_restart_finds_what_was_written(tmp_path: Path, clock: HandClock) -> None:
    mine = daily_writes(tmp_path, clock)
    assert taken(mine, most=50) == 50
    # Nothing is closed or given back: the process might have been killed here.
    again = daily_writes(tmp_path, clock)
    assert 50 * PAGE <= again.written_bytes <= 50 * PAGE + LIMIT // 1024
    assert 51 <= taken(again) <= 52
    info = os.stat(tmp_path / WRITES_FILE)
    assert stat.S_IMODE(info.st_mode) == 0o600


def test_processes_that_share_a_directory_share_its_daily_writes(
    tmp_path: Path, clock: HandClock
) -> None:
    one, two = daily_writes(tmp_path, clock), daily_writes(tmp_path, clock)
    granted = 0
    for _ in range(200):
        granted += one.take(PAGE)
        granted += two.take(PAGE)
    assert 100 <= granted <= 102


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"hours": 5}', b'{"hours": {"x": 1, "7": -1, "8": true, "9": 1e99}}']
)
def test_a_file_that_makes_no_sense_counts_nothing(
    tmp_path: Path, clock: HandClock, raw: bytes
) -> None:
    (tmp_path / WRITES_FILE).write_bytes(raw)
    assert taken(daily_writes(tmp_path, clock)) == 102


def test_a_clock_that_was_set_back_does_not_grant_the_day_twice(
    tmp_path: Path, clock: HandClock
) -> None:
    assert taken(daily_writes(tmp_path, clock)) == 102
    late = HandClock()
    late.pass_by(-100 * HOUR)
    assert taken(daily_writes(tmp_path, late)) == 0


def test_a_disk_that_refuses_the_file_refuses_no_page(tmp_path: Path, clock: HandClock) -> None:
    disk = FaultyDisk()
    mine = daily_writes(tmp_path, clock, disk)
    for name in ("write", "open", "publish"):
        disk.fail[name] = errno.ENOSPC
    assert taken(mine) == 102
    assert [path.name for path in tmp_path.iterdir()] == [LEDGER_FILE], "what it locks"
