"""The picture of `ps --watch` as a function of what stores said and of the terminal's size."""

import io
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from kit.status import figures, process_row
from omlx_cache.control.replies import ExplainedRequest
from omlx_cache.control.serialization import encoded
from omlx_cache_daemon.client import Client, as_answer
from omlx_cache_daemon.errors import NobodyThere
from omlx_cache_daemon.figures import Known, Rates
from omlx_cache_daemon.lookout import Lookout, Watched, busiest, series
from omlx_cache_daemon.screen import Screen
from omlx_cache_daemon.stores import StoreReply
from omlx_cache_storage.stats import ColdUsage, MemoryUsage, RemoteUsage, Stats, WriterUsage

_NOW = 1_000_000.0
_RATES: Rates = {"prompt_tokens_per_second": 100.0, "restored_tokens_per_second": 50.0}


def _told(number: int, **more: Any) -> ExplainedRequest:
    request = ExplainedRequest(
        pid=7,
        why="the text after that is the same",
        number=number,
        asked_at=_NOW - number,
        namespace=f"{number % 3:02x}" * 32,
        model="部門/模型\x1b[31m-[b]8B",
        salt="text:abcd",
        prompt_tokens=1000,
        restored_tokens=900,
        reason="diverged",
        total_seconds=1.0,
    )
    return replace(request, **more)


def _reply(pid: int, **more: Any) -> StoreReply:
    known = as_answer(Stats, figures(asked_tokens=10**10, restored_tokens=10**9, saved_seconds=3.0))
    stats = replace(known, writer=WriterUsage(0, 5, 0, 10, 0, 0, 0, 2, 0), **more)
    told = [_told(number) for number in range(1, 60)]
    watched = Watched(Known(f"serve :{pid}, 模型\x07", "/cache", stats), _RATES, told)
    return StoreReply(Client(Path(f"/{pid}.sock"), pid), watched)


def _lines(
    *replies: StoreReply,
    width: int = 120,
    height: int | None = 40,
    keys: str = "",
    ascii: bool = False,
) -> list[str]:
    """What a terminal shows of these replies after these keys."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii" if ascii else "utf-8", errors="replace")
    console = Console(file=file, width=width, height=height, color_system=None)
    screen = Screen(console)
    screen.take(list(replies), [(0.0, "alpha has gone")])
    screen.press(keys)
    console.print(screen.picture(height))
    file.flush()
    return raw.getvalue().decode().splitlines()


@pytest.mark.parametrize("size", [(24, 80), (50, 200), (20, 60), (5, 20), (100, 300)])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_no_line_is_wider_than_the_screen_and_none_is_too_many(
    size: tuple[int, int], count: int
) -> None:
    height, width = size
    lines = _lines(*(_reply(pid) for pid in range(1, count + 1)), width=width, height=height)
    assert len(lines) == height
    for line in lines:
        assert cell_len(line) <= width
        assert line.isprintable()


def test_a_wide_terminal_uses_its_room() -> None:
    narrow, wide = ("\n".join(_lines(_reply(1), width=width)) for width in (80, 200))
    for words in ("FIRST TOKEN", "WHY", "the text after that is the same", "NAMESPACE"):
        assert (words in narrow, words in wide) == (False, True)
    for words in ("[b]8B", "diverged", "10%", "50.0 restored", "alpha has gone", "q quit"):
        assert words in narrow
        assert words in wide


def test_a_disk_that_is_off_and_a_writer_that_fails_are_said() -> None:
    off = ColdUsage(0, 0, 0, 0, 0, 0, 0, 0, 0, "unavailable: /cache belongs to somebody else")
    low = MemoryUsage("low", None, 0, 0)
    shown = "\n".join(_lines(_reply(1, cold=off, memory=low), ascii=True))
    assert "process 1: disk unavailable: /cache belongs to somebody else" in shown
    assert "2 failed" in shown
    assert "memory low" in shown


def test_remote_stores_are_one_line_and_one_that_rests_is_said() -> None:
    usual = RemoteUsage("redis", "redis://10.0.0.7:6379", "ok", latency_seconds=0.0004)
    rests = replace(usual, where="s3://kv", state="resting: remote_timeout: late", bad_pages=2)
    lines = _lines(_reply(1, remote=usual), _reply(2, remote=rests))
    (line,) = [one.strip() for one in lines if one.startswith(" remote")]
    assert line.split(", ") == [
        *("remote   resting", "-/s read", "-/s written", "2 bad", "0.4 ms away"),
        "redis://10.0.0.7:6379; s3://kv",
    ]
    assert any("process 2: the remote store is resting: remote_timeout" in one for one in lines)
    assert not [one for one in _lines(_reply(1)) if one.startswith(" remote")]


def test_a_number_chooses_a_store_zero_all_and_p_stops_the_picture() -> None:
    both = _reply(1), _reply(2)._replace(error="it hangs")
    assert "2 stores" in _lines(*both)[0]
    assert "process 2" in _lines(*both, keys="2")[0]
    assert "2 stores" in _lines(*both, keys="290")[0]
    assert any("process 2: it hangs" in line for line in _lines(*both))
    assert "PAUSED" in _lines(*both, keys="p")[-1]
    screen = Screen(Console())
    screen.press("p")
    screen.take([*both])
    assert not screen.is_done
    screen.press("pq")
    assert screen.is_done


def test_the_busiest_are_of_the_last_minutes_and_steps_keep_their_columns() -> None:
    told = [_told(1), _told(4, asked_at=_NOW - 1000), _told(7)]
    assert [[one.number for one in each] for each in busiest(told, _NOW)] == [[1, 7]]
    assert series(told, _NOW, 4) == [0, 900, 900, 0]


class Stores:
    """What a lookout asks: `rows` are the requests of all; what is in `broken` has an error, and
    what is in `hung` waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pids: int) -> None:
        self.rows: Sequence[ExplainedRequest] = ()
        self.broken: dict[int, Exception] = {}
        self.hung: dict[int, threading.Event] = {}
        monkeypatch.setattr(Client, "call", lambda client, *asked, **_: self._call(client, *asked))
        monkeypatch.setattr("omlx_cache_daemon.lookout.time.time", lambda: _NOW)
        self.lookout = Lookout(lambda: [Client(Path(f"/{pid}"), pid) for pid in pids])

    def _call(self, client: Client, operation: str) -> object:
        pid = int(client.path.name)
        if pid in self.hung:
            self.hung[pid].wait(30)
        if pid in self.broken:
            raise NobodyThere("it is broken") from self.broken[pid]
        answers = {"ps": process_row(pid=pid), "stats": figures(), "recent": self.rows}
        return json.loads(encoded(answers[operation]))


def test_a_lookout_remembers_requests_until_another_store_takes_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = Stores(monkeypatch, 7)

    def look(*told: ExplainedRequest) -> list[int]:
        stores.rows = told
        (reply,) = stores.lookout.look(30)
        return [one.number for one in reply.answer.requests]

    assert look(_told(7, total_seconds=None), _told(6)) == [7, 6]
    assert look(_told(8)) == [8, 6], "7 was forgotten before it ended"
    assert look(_told(2)) == [2]


def test_a_store_that_hangs_holds_up_nobody_and_one_that_goes_is_said_to_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = Stores(monkeypatch, 1, 2, 3)
    stores.hung, stores.broken = {1: threading.Event()}, {2: TimeoutError()}
    looked = [(reply.store.pid, reply.error) for reply in stores.lookout.look(1)]
    assert looked == [(2, "it is broken"), (3, None)]
    stores.broken = {2: TimeoutError(), 3: ConnectionRefusedError()}
    assert [reply.store.pid for reply in stores.lookout.look(1)] == [2]
    assert [said for _, said in stores.lookout.gone] == ["serve, process 3, has gone"]
    stores.hung[1].set()
    assert [reply.store.pid for reply in stores.lookout.look(30)] == [1, 2]
