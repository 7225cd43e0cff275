"""`ps` of processes of which some do not answer."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kit.status import process_row
from omlx_cache.control.replies import ColdHolding, Holding, RemoteHolding
from omlx_cache.control.serialization import encoded
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.commands import ps
from omlx_cache_daemon.errors import NobodyThere

from .conftest import Cli

COLD = ColdHolding(pages=1, bytes=1024, limit_bytes=2048, state="ok", dir="/cold")


def test_those_that_hang_are_waited_for_together(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    together = threading.Barrier(3)

    class Hung:
        def call(self, operation: str) -> object:
            together.wait(20)
            raise NobodyThere("it did not answer")

    monkeypatch.setattr(Client, "within", lambda store, timeout: Hung())
    found = [Client(Path(f"/nowhere/{pid}-0.sock"), pid) for pid in (1, 2, 3)]
    monkeypatch.setattr(ps, "_shown", lambda args: found)
    ended = cli("ps", "--format", "json")
    assert ended.code == 69, "nobody answers"
    assert json.loads(ended.out) == [
        {"pid": pid, "error": "it did not answer", "socket": f"/nowhere/{pid}-0.sock"}
        for pid in (1, 2, 3)
    ]


def test_a_server_whose_model_is_being_read_is_loading() -> None:
    server = process_row(service={"port": 8080, "model": "org/tiny"})
    assert (server.place, server.title) == ("serve :8080 (loading)", "serve :8080 (loading), tiny")
    assert (
        replace(server, service={**server.service, "url": "http://"}).title == "serve :8080, tiny"
    )


def test_the_answer_of_another_version_is_one_line(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    replies: list[object] = [[], {"pid": 1, "uptime_s": 2.0}]
    monkeypatch.setattr(Client, "call", lambda client, operation: replies.pop())
    found = [Client(Path(f"/nowhere/{pid}-0.sock"), pid) for pid in (1, 2)]
    monkeypatch.setattr(ps, "_shown", lambda args: found)
    rows = cli("ps").out.splitlines()[1:]
    assert len(rows) == 2
    assert all("does not answer: the store is of another version" in row for row in rows)


@pytest.mark.parametrize(
    ("column", "holds", "shown"),
    [
        ("REMOTE", RemoteHolding(where="redis://10.0.0.7:6379", state="ok"), "redis ok"),
        (
            "REMOTE",
            RemoteHolding(where="s3://kv", state="resting: remote_unreachable: nobody listens"),
            "s3 resting (unreachable)",
        ),
        ("REMOTE", None, None),
        ("PENDING", Holding(pages=1, bytes=1024), "1 KiB"),
        ("HOT", Holding(pages=1, bytes=1024, limit_bytes=2048), "1 KiB / 2 KiB"),
        ("COLD", replace(COLD, own_limit_bytes=512), "1 KiB / 2 KiB (own: 512 B)"),
        ("COLD", replace(COLD, state="unavailable: it is not yours"), "off"),
        ("COLD", replace(COLD, state="full", room="short"), "1 KiB / 2 KiB (full)"),
        ("COLD", replace(COLD, state="full", room="inodes"), "1 KiB / 2 KiB (no inodes)"),
        ("COLD", replace(COLD, room="short"), "1 KiB / 2 KiB (short)"),
        ("COLD", replace(COLD, state="failing: Read-only file system"), "1 KiB / 2 KiB (failing)"),
    ],
)
def test_what_a_store_holds_is_said_of_how_much(column: str, holds: object, shown: object) -> None:
    process = json.loads(encoded(process_row(**{column.lower(): holds})))
    row = ps._row({**process, "answered_s": 0.001})
    assert row[ps._HEADERS.index(column)] == shown
