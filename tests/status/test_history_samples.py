"""The last two hours in samples, of one process and of several."""

from collections.abc import Sequence
from typing import Any

import pytest

from kit.status import process, statistics
from omlx_cache.status.history import (
    PROCESSES,
    SAMPLE_SECONDS,
    SAMPLES,
    ProcessStatus,
    StatusHistory,
)


class Processes:
    """Processes that a test sets."""

    def __init__(self, *processes: ProcessStatus) -> None:
        self.answers: Sequence[ProcessStatus] = processes

    def __call__(self) -> Sequence[ProcessStatus]:
        return self.answers


def _process(
    pid: int, asked: int, *, up: float = 1000.0, directory: str = "/a", **more: Any
) -> ProcessStatus:
    counted = {"asked_tokens": asked, "restored_tokens": asked / 2, "saved_seconds": 1.5}
    given = {"stats": statistics(counted), **more}
    return process(pid, f"store {pid}", service={}, uptime_s=up, cold_dir=directory, **given)


@pytest.mark.parametrize(
    ("steps", "counted"),
    [
        pytest.param([(0, 500, 99), (10, 700, 99), (20, 700, 99)], [0, 200, 0], id="since"),
        pytest.param([(0, None, 0), (10, 300, 4), (20, 40, 2)], [0, 300, 40], id="just begun"),
        pytest.param([(0, 100, 99), (10, None, 0), (20, 160, 99)], [0, 0, 60], id="no answer"),
        pytest.param([(0, 0, 99), (1, 5, 99), (10, 7, 99), (12, 8, 99)], [0, 7], id="too early"),
        pytest.param([(1000, 0, 99), (9000, 9, 99), (1020, 30, 99)], [0, 21], id="set back"),
    ],
)
def test_counts_are_those_since_the_sample_before(
    steps: list[tuple[float, int | None, float]], counted: list[float]
) -> None:
    source = Processes()
    history = StatusHistory(source)
    for at, asked, up in steps:
        known = {} if asked is not None else {"stats": None, "error": "does not answer"}
        source.answers = [_process(1, asked or 0, up=up, **known)]
        history.sample(at)
    row = history.rows()[0]
    assert row["asked_tokens"] == counted
    assert row["restored_tokens"] == [tokens / 2 for tokens in counted]


def test_a_directory_that_two_processes_share_is_counted_once() -> None:
    history = StatusHistory(
        Processes(_process(1, 0), _process(2, 0), _process(3, 0, directory="/b"))
    )
    history.sample(0.0)
    all_of_them, *each = history.rows()
    assert (all_of_them["pid"], all_of_them["hot_bytes"]) == (None, [12_000])
    assert all_of_them["cold_bytes"] == [18_000]
    assert [row["title"] for row in each] == ["store 1", "store 2", "store 3"]


def test_the_ring_is_bounded_in_time_and_in_processes() -> None:
    source = Processes()
    history = StatusHistory(source)
    for number in range(SAMPLES + 50):
        source.answers = [_process(pid, number) for pid in range(number, number + PROCESSES + 5)]
        history.sample(number * SAMPLE_SECONDS)
    rows = history.rows()
    assert len(rows) == PROCESSES + 1
    assert len(rows[0]["at"]) == SAMPLES  # type: ignore[arg-type]
    assert SAMPLES * SAMPLE_SECONDS >= 3600
