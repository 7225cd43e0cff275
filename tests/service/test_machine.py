"""One port for all processes: who answers late, how answers become one, and real stores in real
processes, one of which is stopped and killed."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kit.remote.processes import until
from omlx_cache.status.kv_events import events_document
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import NobodyThere
from omlx_cache_daemon.service.machine import MachineStatus, Peers, merged
from omlx_cache_storage.events import OTHER_PROCESS, EventLog

from .conftest import Daemon, started

_STORE = str(Path(__file__).with_name("store.py"))


@pytest.fixture
def machine(home: Path) -> "Iterator[tuple[Daemon, list[subprocess.Popen[str]]]]":
    """A service with a port, and two stores."""
    with started(home, "--status-port", "0") as daemon:
        variables = {**daemon.environment, "OMLX_CACHE_COLD_BYTES": "32MiB"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        stores = [
            subprocess.Popen([sys.executable, _STORE, name], env=variables, text=True, **pipes)  # type: ignore[call-overload]
            for name in ("one", "two")
        ]
        for store in stores:
            store.stdout.readline()
        yield daemon, stores
        for store in stores:
            store.send_signal(signal.SIGCONT)
            store.kill()
            store.communicate(timeout=30)


def _get(daemon: Daemon, path: str) -> str:
    with urllib.request.urlopen(daemon.url + path, timeout=10) as reply:
        return str(reply.read().decode())


def _up(daemon: Daemon) -> dict[str, float]:
    """Who answers, beside the service."""
    families = text_string_to_metric_families(_get(daemon, "/metrics"))
    samples = [sample for family in families for sample in family.samples]
    up = {one.labels["store"]: one.value for one in samples if one.name == "omlx_cache_up"}
    assert up.pop("omlx-cached") == 1.0
    return up


@pytest.mark.nightly
def test_one_port_shows_every_process_and_waits_for_none_that_hangs(
    machine: "tuple[Daemon, list[subprocess.Popen[str]]]",
) -> None:
    daemon, (one, two) = machine
    until(lambda: _up(daemon) == {"one": 1.0, "two": 1.0})
    rows = json.loads(_get(daemon, "/status/overview.json"))["processes"]
    assert [row["role"] for row in rows] == ["service", "store", "store"]
    assert len({row["cold_dir"] for row in rows}) == 1
    settings = json.loads(_get(daemon, "/status/settings.json"))
    kinds = [one["settings"]["cold_bytes"]["kind"] for one in settings]
    assert kinds == ["derived", "environment", "environment"]
    for name in ("requests", "prefixes", "events"):
        json.loads(_get(daemon, f"/status/{name}.json"))

    two.send_signal(signal.SIGSTOP)
    until(lambda: _up(daemon) == {"one": 1.0, "two": 0.0})
    began = time.monotonic()
    for _ in range(5):
        _up(daemon)
    assert time.monotonic() - began < 1.0
    two.send_signal(signal.SIGCONT)
    until(lambda: _up(daemon) == {"one": 1.0, "two": 1.0})

    one.kill()
    one.wait(30)
    until(lambda: _up(daemon) == {"two": 1.0})
    budget = json.loads((daemon.cold_dir / "budget.json").read_text())
    assert (budget["bytes"], budget["set_by"]) == (32 * 2**20, "store")
    # The service ends and comes back: the store goes on, and nothing else is noticed.
    daemon.kill()
    assert daemon.run("stats").returncode == 0
    daemon.start()
    until(lambda: _up(daemon) == {"two": 1.0})
    assert daemon.end() == 0


class _Store:
    """What a store answers: a log of events, or nothing for as long as it hangs."""

    def __init__(self, pid: int) -> None:
        self.store = Client(Path(f"/nowhere/{pid}-0.sock"), pid)
        self.log, self.hangs, self.asked = EventLog(8), False, 0

    def note(self, count: int, detail: str = "") -> None:
        for _ in range(count):
            self.log.note_tier("stored", "hot", b"\1", detail)

    def call(self, name: str, **values: Any) -> object:
        self.asked += name == "events"
        if self.hangs:
            raise NobodyThere("it did not answer")
        found = events_document(self.log, values.get("after"), values.get("limit", 1000), None)
        return {"pid": self.store.pid, **found}


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[_Store]:
    made = [_Store(10), _Store(20)]
    calls = {one.store.path: one.call for one in made}
    monkeypatch.setattr(Client, "call", lambda self, *args, **kw: calls[self.path](*args, **kw))
    return made


def test_events_of_several_processes_become_one_sequence(stores: list[_Store]) -> None:
    one, two = stores
    own = {"events": lambda args: _Store(1).call("events", **args)}
    status = MachineStatus(own, Peers(lambda: [store.store for store in stores]))

    def pids(after: int) -> list[int]:
        found = status.events({"after": after, "limit": 100})["events"]
        assert [event["number"] for event in found] == [after + n + 1 for n in range(len(found))]
        return [event["pid"] for event in found]

    one.note(3)
    two.note(2)
    assert pids(0) == [10, 10, 10, 20, 20]
    one.note(1)
    assert pids(5) == [10]
    assert status.events({"after": 2, "limit": 1})["upto"] == 3
    # What is forgotten before somebody asked is counted.
    one.note(10)
    assert status.events({"after": 0, "limit": 100})["dropped"] == 2
    # One that began anew is heard from its first event.
    one.log = EventLog(8)
    one.note(2)
    assert pids(14) == [10, 10]
    # What others did they tell themselves.
    two.note(1, OTHER_PROCESS)
    assert pids(16) == []


@pytest.mark.parametrize("is_work", [False, True])
def test_whoever_is_late_is_left_alone_but_with_work(stores: list[_Store], is_work: bool) -> None:
    peers = Peers(lambda: [store.store for store in stores])

    def errors() -> list[bool]:
        replies = peers.ask(lambda client: client.call("events"), is_work=is_work)
        return [bool(reply.error) for reply in replies]

    stores[0].hangs = True
    assert errors() == errors() == [True, False]
    assert stores[0].asked == (2 if is_work else 1)
    stores[0].hangs = False
    until(lambda: errors() == [False, False])


def _row(
    key: str, hot: int, cold: int, used_at: float, text: str | None = None
) -> dict[str, object]:
    tiers = {"hot": {"pages": hot, "bytes": 10 * hot}, "cold": {"pages": cold, "bytes": 10 * cold}}
    return {"key": key, "blocks": cold, "used_at": used_at, "tiers": tiers, "text": text}


def test_memory_counts_together_and_the_directory_once() -> None:
    one = {"rows": [_row("a", 2, 5, 1.0), _row("b", 1, 1, 9.0)], "more": 0, "found": True}
    two = {"rows": [_row("a", 3, 5, 4.0, "said"), _row("c", 0, 1, 0.5)], "more": 2, "found": False}
    level = merged([one, two], 2)
    assert (level["more"], level["found"]) == (3, True)
    assert [row["key"] for row in level["rows"]] == ["b", "a"]
    assert level["rows"][1] == _row("a", 5, 5, 4.0, "said")
    assert merged([], 5)["rows"] == []
