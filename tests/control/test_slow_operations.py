"""An operation that hangs delays no other operation, nor another client of the same one."""

import select
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.control import ControlError, ControlServer, Timeouts
from omlx_cache.control.workers import PARALLEL, WAITING, Workers

Connect = Callable[[ControlServer], Any]
TURN = {"v": 1, "op": "turn", "args": {}}


class Hanging:
    """An operation that waits for its gate; `started` counts those that began."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)

    def __call__(self, args: Mapping[str, object]) -> object:
        self.started.release()
        self.gate.wait(60)
        self.ended.release()
        return "done"


@pytest.fixture
def slow() -> Iterator[Hanging]:
    slow = Hanging()
    yield slow
    slow.gate.set()


def _server(runtime_dir: Path, slow: Hanging, **options: Any) -> ControlServer:
    handlers = {"turn": slow, "ping": lambda args: "pong"}
    return ControlServer(runtime_dir / "a.sock", handlers, **options)


def test_ping_is_answered_while_any_number_of_operations_hang(
    runtime_dir: Path, connect: Connect, slow: Hanging
) -> None:
    with _server(runtime_dir, slow) as server:
        hanging = [connect(server) for _ in range(PARALLEL + 2)]
        for client in hanging:
            client.send(TURN)
        for _ in range(PARALLEL):
            assert slow.started.acquire(timeout=30)
        assert connect(server).ask("ping")["result"] == "pong"
        slow.gate.set()
        assert [client.receive()["result"] for client in hanging] == ["done"] * (PARALLEL + 2)


def test_the_time_that_an_operation_takes_is_not_held_against_its_client(
    runtime_dir: Path, connect: Connect, slow: Hanging
) -> None:
    timeouts = Timeouts(idle=0.05, read=0.05)
    with _server(runtime_dir, slow, timeouts=timeouts) as server:
        client, idle = connect(server), connect(server)
        client.send(TURN)
        assert slow.started.acquire(timeout=30)
        assert idle.at_end()
        slow.gate.set()
        assert client.receive()["result"] == "done"


def test_requests_behind_a_hanging_one_on_a_connection_wait_their_turn(
    runtime_dir: Path, connect: Connect, slow: Hanging
) -> None:
    with _server(runtime_dir, slow) as server:
        client = connect(server)
        client.send(TURN)
        client.send({"v": 1, "op": "ping", "args": {}})
        assert slow.started.acquire(timeout=30)
        slow.gate.set()
        assert [client.receive()["result"] for _ in range(2)] == ["done", "pong"]


def test_a_server_closes_while_an_operation_hangs(
    runtime_dir: Path, connect: Connect, slow: Hanging
) -> None:
    server = _server(runtime_dir, slow)
    client = connect(server)
    client.send(TURN)
    assert slow.started.acquire(timeout=30)
    server.close()
    assert client.at_end()
    slow.gate.set()
    assert slow.ended.acquire(timeout=30)


def test_too_many_calls_of_a_hanging_operation_are_refused_and_the_rest_run_in_the_end() -> None:
    workers, gate, ended = Workers(), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        gate.wait(60)
        ended.release()

    def fill() -> None:
        while True:
            workers.submit("turn", hang)
            accepted.append(1)

    accepted: list[int] = []
    with pytest.raises(ControlError, match="wait already") as refused:
        fill()
    assert refused.value.code == "busy"
    assert WAITING <= len(accepted) <= WAITING + PARALLEL
    workers.submit("ping", ended.release)
    assert ended.acquire(timeout=30)
    gate.set()
    for _ in accepted:
        assert ended.acquire(timeout=30)
    workers.submit("turn", ended.release)
    assert ended.acquire(timeout=30)


def test_hanging_operations_do_not_lock_newcomers_out(
    runtime_dir: Path, connect: Connect, slow: Hanging
) -> None:
    with _server(runtime_dir, slow, max_connections=PARALLEL + 1) as server:
        hanging = [connect(server) for _ in range(PARALLEL)]
        for client in hanging:
            client.send(TURN)
        for _ in range(PARALLEL):
            assert slow.started.acquire(timeout=30)
        waiting = connect(server)
        waiting.send(TURN)
        # There is room for one: a newcomer takes the place of a connection that is answered.
        assert connect(server).ask("ping")["result"] == "pong"
        dropped = [client for client in (*hanging, waiting) if _is_dropped(client)]
        assert len(dropped) == 1
        slow.gate.set()
        for client in (*hanging, waiting):
            if client not in dropped:
                assert client.receive()["result"] == "done"


def _is_dropped(client: Any) -> bool:
    ready, _, _ = select.select([client.sock], [], [], 0)
    return bool(ready) and client.at_end()
