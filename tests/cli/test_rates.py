"""A line of `stats --watch`, from two documents of statistics."""

from typing import Any

import pytest

from omlx_cache_daemon.rates import COLUMNS, cells, rates


def _stats(uptime: float, **requests: Any) -> dict[str, object]:
    return {
        "uptime_seconds": uptime,
        "hot": {"nbytes": 2**20, "evicted_pages": int(uptime)},
        "cold": {
            "nbytes": 2**30,
            "evicted_pages": 2 * int(uptime),
            "written_bytes": int(uptime) * 9 * 2**19,
        },
        "writer": {"pending_bytes": 2**21},
        "requests": requests,
    }


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


@pytest.mark.parametrize("stats", [{}, {"hot": 5, "requests": {"misses": [1]}}, {"cold": None}])
def test_what_another_version_does_not_tell_is_left_out(stats: dict[str, object]) -> None:
    shown = cells(rates(stats, stats))
    assert shown[1:] == [None] * (len(COLUMNS) - 1)


def test_nothing_asked_is_no_hit_and_no_miss() -> None:
    row = rates(_NOW, {**_NOW, "uptime_seconds": 103.0})
    assert (row["requests_per_second"], row["hit_ratio"], row["misses"]) == (0, None, {})


def test_what_other_machines_gave_has_a_cell_and_a_store_that_rests_is_said_there() -> None:
    def afar(stats: dict[str, object], nbytes: int, state: str = "ok") -> dict[str, object]:
        return {**stats, "remote": {"read_bytes": nbytes, "written_bytes": 0, "state": state}}

    at = [name for name, _ in COLUMNS].index("REMOTE/S")
    row = rates(afar(_BEFORE, 2**20), afar(_NOW, 5 * 2**20))
    assert row["remote_read_bytes_per_second"] == 2 * 2**20
    assert row["remote_written_bytes_per_second"] == 0
    assert cells(row)[at] == "2 MiB"
    assert cells(rates(_BEFORE, _NOW))[at] is None
    resting = rates(afar(_BEFORE, 0), afar(_NOW, 0, "resting: remote_timeout: nothing came"))
    assert cells(resting)[at] == "resting"
