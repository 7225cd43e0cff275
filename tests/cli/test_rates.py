"""A line of `stats --watch`, from two documents of statistics."""

from dataclasses import replace
from typing import Any

import pytest

from kit.status import figures
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.rates import COLUMNS, cells, rates
from omlx_cache_daemon.replies import as_answer
from omlx_cache_storage.stats import ColdUsage, HotUsage, RemoteUsage, Stats, WriterUsage


def _stats(uptime: float, **requests: Any) -> Stats:
    known = as_answer(Stats, figures(**requests))
    ticks = int(uptime)
    return replace(
        known,
        uptime_seconds=uptime,
        hot=HotUsage(0, 2**20, 0, 0, 0, ticks),
        cold=ColdUsage(
            0, 2**30, 0, 0, 2 * ticks, 0, 0, 0, 0, "ok", written_bytes=ticks * 9 * 2**19
        ),
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


def test_what_was_counted_between_two_looks_is_shown_by_the_second() -> None:
    assert rates(_BEFORE, _NOW) == {
        "requests_per_second": 2.0,
        "prompt_tokens_per_second": 1000.0,
        "hit_ratio": 0.9,
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


def test_the_first_line_is_the_mean_since_the_store_began() -> None:
    row = rates(None, _NOW)
    assert row["requests_per_second"] == pytest.approx(14 / 102)
    assert row["misses"] == {"absent": 4, "evicted": 1, "no_room": 2}


def test_a_store_that_began_again_is_counted_from_its_start() -> None:
    assert rates(_NOW, _BEFORE) == rates(None, _BEFORE)


def test_a_line_for_people_has_units() -> None:
    shown = cells(rates(_BEFORE, _NOW))
    assert len(shown) == len(COLUMNS)
    assert shown[1:] == [
        *("2.0", "1,000", "90.0", "100", "1 MiB", "1 GiB"),
        None,
        *("2 MiB", "4.5 MiB"),
        *("5.12 KiB", "3.0", "1.5 s"),
        "1 absent, 2 no_room",
    ]


@pytest.mark.parametrize("stats", [{}, [], {**figures(), "hot": 5}, {**figures(), "events": [1]}])
def test_another_versions_answer_is_one_line(stats: object) -> None:
    with pytest.raises(CommandError, match="another version of omlx-cache: Stats") as refused:
        as_answer(Stats, stats)
    assert "\n" not in str(refused.value)


def test_a_store_without_a_disk_has_no_figures_of_one() -> None:
    shown = cells(rates(None, replace(_NOW, cold=None, writer=None)))
    names = [name for name, _ in COLUMNS]
    assert [shown[names.index(name)] for name in ("COLD", "PENDING", "WRITTEN/S")] == [None] * 3


def test_nothing_asked_is_no_hit_and_no_miss() -> None:
    row = rates(_NOW, replace(_NOW, uptime_seconds=103.0))
    assert (row["requests_per_second"], row["hit_ratio"], row["misses"]) == (0, None, {})


def test_what_other_machines_gave_has_a_cell_and_a_store_that_rests_is_said_there() -> None:
    def afar(stats: Stats, nbytes: int, state: str = "ok") -> Stats:
        return replace(stats, remote=RemoteUsage("redis", "here", state, read_bytes=nbytes))

    at = [name for name, _ in COLUMNS].index("REMOTE/S")
    row = rates(afar(_BEFORE, 2**20), afar(_NOW, 5 * 2**20))
    assert row["remote_read_bytes_per_second"] == 2 * 2**20
    assert row["remote_written_bytes_per_second"] == 0
    assert cells(row)[at] == "2 MiB"
    assert cells(rates(_BEFORE, _NOW))[at] is None
    resting = rates(afar(_BEFORE, 0), afar(_NOW, 0, "resting: remote_timeout: nothing came"))
    assert cells(resting)[at] == "resting"
