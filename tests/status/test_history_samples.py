"""The last two hours in samples, of one process and of several."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.status import process, statistics
from kit.storage import Story, commit, open_store
from omlx_cache.status.history import PROCESSES, SAMPLE_SECONDS, SAMPLES, StatusHistory
from omlx_cache.status.process import ProcessStatus


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
    return process(pid, title=f"store {pid}", uptime_seconds=up, cold_dir=directory, **given)


def test_counts_are_those_since_the_sample_before() -> None:
    source = Processes(_process(1, 500))
    history = StatusHistory(source)
    for at, asked in ((0.0, 500), (10.0, 700), (20.0, 700)):
        source.answers = [_process(1, asked)]
        history.sample(at)
    (row,) = history.rows()
    assert row["at"] == [0.0, 10.0, 20.0]
    assert row["asked_tokens"] == [0.0, 200.0, 0.0]
    assert row["restored_tokens"] == [0.0, 100.0, 0.0]
    assert row["hot_bytes"] == [4000, 4000, 4000]


def test_a_process_that_has_just_begun_counts_from_its_start() -> None:
    source = Processes()
    history = StatusHistory(source)
    history.sample(0.0)
    source.answers = [_process(1, 300, up=4.0)]
    history.sample(10.0)
    source.answers = [_process(1, 40, up=2.0)]
    history.sample(20.0)
    assert history.rows()[0]["asked_tokens"] == [0.0, 300.0, 40.0]


def test_a_process_that_does_not_answer_loses_nothing() -> None:
    source = Processes(_process(1, 100))
    history = StatusHistory(source)
    history.sample(0.0)
    source.answers = [_process(1, 0, error="does not answer", stats=None)]
    history.sample(10.0)
    source.answers = [_process(1, 160)]
    history.sample(20.0)
    assert history.rows()[0]["asked_tokens"] == [0.0, 0.0, 60.0]


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


def test_a_clock_that_is_set_back_leaves_nothing_in_the_future() -> None:
    source = Processes(_process(1, 0), _process(2, 0))
    history = StatusHistory(source)
    for now in (1000.0, 90_000.0, 90_010.0):
        history.sample(now)
    source.answers = [_process(1, 30)]
    history.sample(1020.0)
    all_of_them, *each = history.rows()
    assert all_of_them["at"] == [1000.0, 1020.0]
    assert all_of_them["asked_tokens"] == [0, 30]
    assert [row["at"] for row in each] == [[1000.0, 1020.0], [1000.0]]


def test_a_sample_that_is_asked_for_too_early_is_none() -> None:
    history = StatusHistory(Processes(_process(1, 0)))
    for at in (0.0, 1.0, 5.0, 10.0, 12.0, 20.0):
        history.sample(at)
    assert history.rows()[0]["at"] == [0.0, 10.0, 20.0]


def test_a_real_store_is_sampled(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        history = StatusHistory(lambda: store.operations["processes"]({}))
        history.sample(0.0)
        asked = store.requests.ask("ab" * 32, {"label": "llama"}, 100)
        asked.restored(80, 0, 0.1, None)
        asked.ended(1)
        commit(store, Story(), 1)
        history.sample(10.0)
        (row,) = history.rows()
        assert (row["asked_tokens"], row["restored_tokens"]) == ([0.0, 100.0], [0.0, 80.0])
        assert row["hot_bytes"] == [0, 4096]
        json.dumps(row)
