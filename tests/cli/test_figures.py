"""Figures of stores: what one did between two looks, and the sum of several."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kit.status import figures, statistics
from omlx_cache_daemon.client import as_answer
from omlx_cache_daemon.commands.stats import _brief
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.figures import COLUMNS, SPARE, cells, rates, total
from omlx_cache_daemon.render import Lines
from omlx_cache_storage.stats import ColdUsage, Histogram, HotUsage, RemoteUsage, Stats, WriterUsage


def _stats(uptime: float, **requests: Any) -> Stats:
    ticks = int(uptime)
    cold = ColdUsage(
        3, 2**30, 0, 2**32, 2 * ticks, 0, 0, 0, 0, "ok", written_bytes=ticks * 9 * 2**19
    )
    return replace(
        as_answer(Stats, figures(**requests)),
        uptime_seconds=uptime,
        hot=HotUsage(0, 2**20, 0, 0, 0, ticks),
        cold=cold,
        writer=WriterUsage(0, 2**21, 0, 0, 0, 0, 0, 0, 0),
    )


_BEFORE = _stats(
    100.0,
    sessions=10,
    asked_tokens=1000,
    restored_tokens=500,
    prefilled_tokens=500,
    saved_seconds=7.0,
    misses={"absent": 3, "evicted": 1},
)
_NOW = _stats(
    102.0,
    sessions=14,
    asked_tokens=3000,
    restored_tokens=2300,
    prefilled_tokens=700,
    saved_seconds=8.5,
    misses={"absent": 4, "evicted": 1, "no_room": 2},
)
_REMOTE = RemoteUsage("redis", "here", "ok", read_bytes=2**20, latency_seconds=0.25)


def test_what_was_counted_between_two_looks_is_shown_by_the_second() -> None:
    row = rates(_BEFORE, _NOW)
    assert row == {
        "requests_per_second": 2.0,
        "prompt_tokens_per_second": 1000.0,
        "hit_ratio": 0.9,
        "restored_tokens_per_second": 900.0,
        "computed_tokens_per_second": 100.0,
        "hot_bytes": 2**20,
        "cold_bytes": 2**30,
        "pending_bytes": 2**21,
        "remote_read_bytes_per_second": None,
        "remote_written_bytes_per_second": None,
        "remote_state": None,
        "written_bytes_per_second": 9 * 2**19,
        "written_bytes_per_restored_token": 2 * 9 * 2**19 / 1800,
        "evicted_pages_per_second": 3.0,
        "saved_seconds": 1.5,
        "misses": {"absent": 1, "no_room": 2},
    }
    assert dict(zip(dict(COLUMNS), cells(row, "so far"), strict=True)).items() >= {
        ("PROMPT/S", "1,000"),
        ("HIT%", "90.0"),
        ("REMOTE/S", "-"),
        ("WRITTEN/S", "4.5 MiB"),
        ("SAVED", "1.5 s"),
        ("MISSES", "1 absent, 2 no_room"),
    }


def test_the_first_line_and_that_of_a_store_that_began_again_are_means_since_its_start() -> None:
    row = rates(None, _NOW)
    assert row["requests_per_second"] == pytest.approx(14 / 102)
    assert row["misses"] == {"absent": 4, "evicted": 1, "no_room": 2}
    assert rates(_NOW, _BEFORE) == rates(None, _BEFORE)


def test_what_is_not_there_has_no_figures() -> None:
    row = rates(_NOW, replace(_NOW, uptime_seconds=103.0, cold=None, writer=None))
    assert (row["requests_per_second"], row["hit_ratio"], row["misses"]) == (0, None, {})
    assert (row["cold_bytes"], row["pending_bytes"], row["written_bytes_per_second"]) == (None,) * 3


def test_a_remote_store_has_a_cell_and_one_that_rests_is_said_there() -> None:
    at = [name for name, _ in COLUMNS].index("REMOTE/S")
    before, resting = (replace(_BEFORE, remote=_REMOTE), replace(_REMOTE, state="resting: why"))
    now = replace(_NOW, remote=replace(_REMOTE, read_bytes=5 * 2**20))
    assert cells(rates(before, now), "")[at] == "2 MiB"
    assert cells(rates(before, replace(now, remote=resting)), "")[at] == "resting"


@pytest.mark.parametrize("width", [80, 100, 140])
def test_rows_of_rates_fit_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Lines(COLUMNS, SPARE).print(cells(rates(None, _NOW), "so far"))
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= width
    assert told.split()[-6:] == ["4", "absent,", "1", "evicted,", "2", "no_room"]
    assert told.splitlines()[1].split()[:2] == ["so", "far"]


def test_a_directory_that_two_stores_share_counts_once_and_what_they_did_adds_up() -> None:
    histogram = {"restore_seconds": Histogram(((0.1, 1), (1.0, 2)), 0.5, 2)}
    one = replace(_NOW, histograms=histogram, remote=_REMOTE)
    off = replace(_NOW.cold, state="unavailable: gone")
    sums = total([("/a", one), ("/a", replace(one, cold=off)), ("/b", _BEFORE), (None, _BEFORE)])
    cold, requests, remote = sums.cold, sums.requests, sums.remote
    assert (cold.nbytes, cold.pages, cold.state) == (3 * 2**30, 9, "unavailable: gone")
    assert (cold.written_bytes, sums.hot.nbytes) == (404 * 9 * 2**19, 4 * 2**20)
    assert requests.misses == {"absent": 14, "evicted": 4, "no_room": 4}
    assert (requests.hit_ratio, sums.uptime_seconds) == (5600 / 8000, 102.0)
    assert (remote.read_bytes, remote.latency_seconds) == (2**21, 0.25)
    assert sums.histograms["restore_seconds"] == Histogram(((0.1, 2), (1.0, 4)), 1.0, 4)


@pytest.mark.parametrize("stats", [{}, [], {**figures(), "hot": 5}, {**figures(), "events": [1]}])
def test_another_versions_answer_is_one_line(stats: object) -> None:
    with pytest.raises(CommandError, match="another version of omlx-cache: Stats") as refused:
        as_answer(Stats, stats)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, ", disk 8.79 KiB of 97.66 KiB"),
        ({"state": "opening"}, ", disk 8.79 KiB of 97.66 KiB; the disk is opening"),
        (
            {"room": "rationed"},
            ", disk 8.79 KiB of 97.66 KiB; daily_write_bytes is spent: new pages stay in memory",
        ),
        (
            {"state": "full"},
            ", disk 8.79 KiB of 97.66 KiB; the disk is full; the next try comes within a minute",
        ),
        (
            {"state": "unavailable: gone"},
            "; the disk is unavailable: gone; the next try comes within a minute",
        ),
    ],
)
def test_stats_say_how_the_disk_is_and_no_size_of_one_that_is_away(
    changes: Mapping[str, str], held: str
) -> None:
    shown = _brief(statistics(cold=replace(statistics().cold, **changes)))
    assert shown.endswith(f"memory 3.91 KiB of 7.81 KiB{held}\n")


def test_time_that_was_not_measured_is_named_once() -> None:
    shown = _brief(statistics({"asked_tokens": 9, "restored_tokens": 9}))
    (line,) = (line for line in shown.splitlines() if "first prompt that is computed" in line)
    assert line.count("time") == 1
