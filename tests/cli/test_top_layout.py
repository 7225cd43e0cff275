"""The screen of `top` as a function of figures and sizes."""

from dataclasses import replace
from typing import Any

import pytest

from kit.status import figures
from omlx_cache.requests.explanation import RequestRecord
from omlx_cache_daemon.replies import Map, as_answer
from omlx_cache_daemon.screen.cells import ASCII, BLOCKS, bar, cell_width, columns, fitted
from omlx_cache_daemon.screen.lately import Records, busiest, series
from omlx_cache_daemon.screen.layout import laid_out
from omlx_cache_daemon.screen.view import View, view_of
from omlx_cache_daemon.screen.watched import StoreSeen
from omlx_cache_storage.stats import (
    ColdUsage,
    HotUsage,
    MemoryUsage,
    RemoteUsage,
    Stats,
    WriterUsage,
)

_NOW = 1_000_000.0


def _record(number: int, **more: Any) -> RequestRecord:
    record = RequestRecord(
        number=number,
        asked_at=_NOW - number,
        namespace=f"{number % 3:02x}" * 32,
        model="部門/模型\x1b[31m-8B",
        salt="text:abcd",
        prompt_tokens=1000,
        restored_tokens=900,
        reason="diverged",
        total_seconds=1.0,
    )
    return replace(record, **more)


def _process(pid: int, directory: str = "/cache", **more: Any) -> StoreSeen:
    known = as_answer(Stats, figures(asked_tokens=10**10, restored_tokens=10**9, saved_seconds=3.0))
    stats = replace(
        known,
        hot=HotUsage(10, 2**30, 0, 2**32, 2**32, 1),
        cold=_disk("ok"),
        writer=WriterUsage(0, 5, 0, 10, 0, 0, 0, 2, 0),
        memory=MemoryUsage("low", None, 0, 0),
    )
    return StoreSeen(
        pid,
        f"/{pid}.sock",
        f"serve :{pid}, 模型\x07",
        directory=directory,
        stats=replace(stats, **more),
        rates={"prompt_tokens_per_second": 100.0, "hit_ratio": 0.5},
        records=tuple(_record(number) for number in range(1, 60)),
    )


def _disk(state: str) -> ColdUsage:
    return ColdUsage(10, 2**30, 0, 2**32, 1, 0, 0, 0, 0, state)


def _view(*processes: StoreSeen) -> View:
    return view_of(processes, None, _NOW)


@pytest.mark.parametrize("size", [(24, 80), (40, 120), (20, 60), (5, 20), (1, 1), (100, 300)])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_no_line_is_wider_than_the_screen_and_none_is_too_many(
    size: tuple[int, int], count: int
) -> None:
    height, width = size
    view = _view(*(_process(pid, f"/{pid}") for pid in range(1, count + 1)))
    lines = laid_out(view, width, height, BLOCKS, "q quit")
    assert len(lines) <= max(height, 1)
    for line in lines:
        shown = "".join(span.text for span in line)
        assert cell_width(shown) <= width
        assert shown.isprintable()


def test_a_directory_that_two_processes_share_counts_once_and_memories_add_up() -> None:
    view = _view(_process(1), _process(2), _process(3, "/other"))
    assert view.cold is not None
    assert (view.cold.nbytes, view.hot.nbytes) == (2 * 2**30, 3 * 2**30)
    assert view.rates["restored_tokens_per_second"] == 150.0
    assert view.rates["computed_tokens_per_second"] is None


def test_a_disk_that_is_off_and_a_writer_that_fails_are_said() -> None:
    view = _view(_process(1, cold=_disk("unavailable: /cache belongs to somebody else")))
    shown = "\n".join("".join(span.text for span in line) for line in laid_out(view, 80, 24, ASCII))
    assert "process 1: disk unavailable: /cache belongs to somebody else" in shown
    assert "2 failed" in shown
    assert "memory low" in shown
    assert shown.replace("\N{REPLACEMENT CHARACTER}", "").replace("模型", "").isascii()


def test_what_was_asked_long_ago_is_not_lately() -> None:
    records = [_record(1), _record(4, asked_at=_NOW - 1000)]
    assert [(busy.requests, busy.restored_tokens) for busy in busiest(records, _NOW)] == [(1, 900)]
    assert series(records, _NOW, 4) == [0, 0, 900, 0]


def _told(upto: int, *records: RequestRecord) -> Map:
    return {"upto": upto, "records": [record.to_dict() for record in records]}


def test_records_follow_those_under_way_until_they_end_or_are_forgotten() -> None:
    records = Records()
    under_way = _record(7, total_seconds=None)
    records.take(_told(7, _record(6), under_way))
    assert records.question() == {"after": 7, "open": [7]}
    records.take(_told(7, _record(7)))
    assert records.question() == {"after": 7, "open": []}
    records.take(_told(8, _record(8, total_seconds=None)))
    records.take(_told(8))
    assert [record.number for record in records.latest()] == [7, 6]
    records.take(_told(2, _record(2)))
    assert (records.latest(), records.question()["after"]) == ([], 0)


def test_bars_and_columns_are_of_the_size_that_was_asked_for() -> None:
    assert bar(1, 10**9, 10, ASCII) == "#........."
    assert bar(5, 0, 4, ASCII) == "...."
    assert bar(9, 3, 4, ASCII) == "####"
    assert columns([0, 1, 50, 100], 2, BLOCKS) == ["   █", " ▁██"]
    assert fitted("模型", 3) == "模 "
    assert fitted("ab\x1bc", 6, right=True) == "  ab\N{REPLACEMENT CHARACTER}c"


def _afar(state: str = "ok", where: str = "redis://10.0.0.7:6379", **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("read_bytes", "written_bytes", "pending_pages", "dropped_pages"), 3)
    usual: dict[str, Any] = {"latency_seconds": 0.0004, **counts, **more}
    return {"remote": RemoteUsage("redis", where, state, **usual)}


def _shown(view: View) -> list[str]:
    return ["".join(span.text for span in line) for line in laid_out(view, 120, 40, BLOCKS)]


def test_a_store_that_machines_share_has_a_line_and_none_has_not() -> None:
    (line,) = [one for one in _shown(_view(_process(1, **_afar()))) if one.startswith(" remote")]
    assert " ok, - read, - written, 3 dropped, 0.4 ms away, redis://10.0.0.7:6379" in line
    assert not [one for one in _shown(_view(_process(1))) if one.startswith(" remote")]
    assert _view(_process(1)).afar is None


def test_a_store_that_rests_is_said_and_stores_of_several_processes_are_one_line() -> None:
    why = "resting: remote_timeout: nothing came"
    view = _view(_process(1, **_afar()), _process(2, **_afar(why, "s3://kv", bad_pages=2)))
    assert view.afar is not None
    assert (view.afar.state, view.afar.read_bytes) == (why, 6)
    lines = _shown(view)
    (line,) = [one for one in lines if one.startswith(" remote")]
    assert "resting" in line
    assert "2 bad" in line
    assert "redis://10.0.0.7:6379, s3://kv" in line
    assert f" process 2: the remote store is {why}" in lines
