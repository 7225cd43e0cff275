"""`ps` of processes of which some do not answer."""

import threading
from pathlib import Path

import pytest

from omlx_cache_daemon.cli import main
from omlx_cache_daemon.commands import ps
from omlx_cache_daemon.errors import NobodyThere
from omlx_cache_daemon.stores import RunningStore


def test_those_that_hang_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    together = threading.Barrier(3)

    class Hung:
        def call(self, operation: str) -> object:
            together.wait(20)
            raise NobodyThere("it did not answer")

    monkeypatch.setattr(RunningStore, "client", lambda store, timeout: Hung())
    found = [RunningStore(Path(f"/nowhere/{pid}-0.sock"), pid) for pid in (1, 2, 3)]
    monkeypatch.setattr(ps, "_shown", lambda args: found)
    assert main(["ps"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[:4] for row in rows] == [
        [str(pid), "does", "not", "answer:"] for pid in (1, 2, 3)
    ]


def test_the_store_that_machines_share_is_a_word_and_how_it_is() -> None:
    at = ps._HEADERS.index("REMOTE")

    def cell(remote: object) -> object:
        return ps._row({"pid": 1, "name": "serve", "remote": remote})[at]

    where = "redis://10.0.0.7:6379"
    assert cell({"where": where, "state": "ok"}) == "redis ok"
    why = "resting: remote_unreachable: nobody listens at 10.0.0.7"
    assert cell({"where": where, "state": why}) == "redis resting (unreachable)"
    assert cell(None) == cell("\x1b") == "-"
