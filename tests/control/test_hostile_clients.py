"""Clients of the Unix socket that are strangers, silent, slow or many, and operations that hang."""

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.control import handler, server
from omlx_cache.control.listener import parse_xucred, peer_uid
from omlx_cache.control.server import PARALLEL, ApiServer

from .conftest import Connect, RawClient
from .test_control_server import ask, open_server


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


def _open(runtime_dir: Path, slow: object = dict, **options: Any) -> ApiServer:
    operations = {"ping": dict, "compare": slow, "recent": lambda args: "x" * 2**25}
    return open_server(runtime_dir / "a.sock", operations, **options)


def _hang(server: ApiServer, connect: Connect, slow: Hanging, count: int) -> list[RawClient]:
    """Return so many clients that wait for the slow operation; as many as may have begun it."""
    clients = [connect(server) for _ in range(count)]
    for number, client in enumerate(clients):
        # However it is spelled, it is one path.
        client.get(f"compare#{number}")
    for _ in range(min(count, PARALLEL)):
        assert slow.started.acquire(timeout=30)
    return clients


@pytest.mark.parametrize(
    ("garbage", "status"),
    [
        (b"\x00\x00\x00\x2c\x83\xa1v\x01\xa2op\xa4ping\xa4args\x80\r\n", b""),
        (b"POST /store/ping", b""),
        (b"GET /store/ping HTTP/1.1\r\nHost: localhost\r\n", b""),
        (b"POST /store/prune HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}", b""),
        (b"POST /store/prune HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"GET /store/ping HTTP/1.1\r\n" + b"Content-Length: 0\r\n" * 2 + b"\r\n", b"400"),
        (b"GET /store/ping HTTP/1.1\r\nno header\r\nHost: localhost\r\n\r\n", b"400"),
        (b"POST /store/flush HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n{}", b"413"),
        (b"POST /store/flush HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"413"),
        (b"POST /store/flush HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"413"),
        (b"GET /store/ping?" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"413"),
    ],
    ids=[
        *("msgpack", "line", "headers", "body", "chunked", "two", "malformed"),
        *("long", "longer", "negative", "path"),
    ],
)
def test_garbage_ends_its_own_connection_only(
    runtime_dir: Path, connect: Connect, garbage: bytes, status: bytes
) -> None:
    with _open(runtime_dir) as server:
        hostile = connect(server)
        hostile.sock.sendall(garbage)
        hostile.sock.shutdown(socket.SHUT_WR)
        assert hostile.rest()[9:12] == status
        assert ask(server, "ping") == {}


def test_a_request_that_comes_byte_by_byte_is_answered_and_half_a_one_cut_off(
    runtime_dir: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _open(runtime_dir) as server:
        slow = connect(server)
        for byte in b"GET /store/ping HTTP/1.1\r\n\r\n":
            slow.sock.sendall(bytes([byte]))
            assert ask(server, "ping") == {}
        assert slow.status() == 200
        monkeypatch.setattr(handler, "READ_SECONDS", 0.1)
        half = connect(server)
        half.sock.sendall(b"GET /store")
        assert half.at_end()


def test_a_client_that_never_reads_its_answer_holds_nobody_up_and_is_cut_off(
    runtime_dir: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "WRITE_SECONDS", 0.2)
    with _open(runtime_dir) as server:
        stuck = connect(server)
        stuck.get("recent")
        assert ask(server, "ping") == {}
        hang_up = select.poll()
        hang_up.register(stuck.sock, 0)
        assert hang_up.poll(20_000), "the server has not closed the connection"
        assert 0 < len(stuck.rest()) < 2**25


def test_bad_clients_cost_a_bounded_number_of_threads_and_nobody_an_answer(
    runtime_dir: Path, connect: Connect
) -> None:
    with _open(runtime_dir, most=8) as server:
        crowd = []
        for number in range(100):
            client = connect(server)
            crowd.append(client)
            client.sock.sendall((b"", b"GET", b"GET /store/ping HTTP/1.1\r\n\r\n")[number % 3])
            if number % 7 == 0:
                client.sock.close()
            if number % 20 == 0:
                assert ask(server, "ping") == {}
                clients = [t for t in threading.enumerate() if t.name.endswith("control-client")]
                assert len(clients) <= 8
        assert ask(server, "ping") == {}
        assert crowd[3].at_end()


@pytest.mark.parametrize(
    "credentials",
    [lambda sock: os.geteuid() + 1, lambda sock: parse_xucred(b"")],
    ids=["stranger", "unknown"],
)
def test_another_user_is_refused_without_an_answer(
    runtime_dir: Path, connect: Connect, credentials: Any
) -> None:
    with _open(runtime_dir, credentials=credentials) as server:
        client = connect(server)
        # It may be cut off before it has asked.
        with suppress(OSError):
            client.get("ping")
        assert client.at_end()


def test_the_kernel_names_the_peers_user() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(ours) == os.geteuid()


def test_macos_credentials_are_parsed_and_doubtful_ones_refused() -> None:
    groups = struct.pack("=h2x16I", 1, *range(16))
    assert parse_xucred(struct.pack("=II", 0, 501) + groups) == 501
    for doubtful in (b"", b"\0" * 7, struct.pack("=II", 1, 501) + groups):
        with pytest.raises(OSError, match="LOCAL_PEERCRED"):
            parse_xucred(doubtful)


def test_others_are_answered_while_operations_hang_and_those_behind_wait_their_turn(
    runtime_dir: Path, connect: Connect, slow: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time that an operation takes is not the client's.
    monkeypatch.setattr(handler, "READ_SECONDS", 0.1)
    with _open(runtime_dir, slow) as server:
        hanging = _hang(server, connect, slow, PARALLEL + 2)
        began = time.monotonic()
        assert ask(server, "ping") == {}
        assert time.monotonic() - began < 30
        assert not slow.started.acquire(timeout=0.2)
        slow.gate.set()
        assert [client.status() for client in hanging] == [200] * (PARALLEL + 2)


def test_hanging_operations_do_not_lock_newcomers_out(
    runtime_dir: Path, connect: Connect, slow: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PLACE_SECONDS", 20.0)
    with _open(runtime_dir, slow, most=PARALLEL + 1) as opened:
        hanging = _hang(opened, connect, slow, PARALLEL)
        waiting = connect(opened)
        waiting.get("compare")
        # There is room for one: a newcomer takes the place of one that waits.
        assert ask(opened, "ping") == {}
        assert waiting.at_end()
        slow.gate.set()
        assert [client.status() for client in hanging] == [200] * PARALLEL


def test_a_server_closes_while_an_operation_hangs(
    runtime_dir: Path, connect: Connect, slow: Hanging
) -> None:
    with _open(runtime_dir, slow) as server:
        (client,) = _hang(server, connect, slow, 1)
        began = time.monotonic()
        server.close(30)
        assert time.monotonic() - began < 29
        assert client.at_end()
    slow.gate.set()
    assert slow.ended.acquire(timeout=30)
