import os
import select
import socket
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.examples import examples
from omlx_cache.control import ControlError, ControlServer, Timeouts
from omlx_cache.control.frames import REQUEST_LIMIT, decode_reply, decode_request
from omlx_cache.control.peer import parse_xucred, peer_uid

Connect = Callable[[ControlServer], Any]
HANDLERS = {
    "ping": lambda args: "pong",
    "page": lambda args: b"x" * 2**20,
    "large": lambda args: b"x" * (32 * 2**20),
}


def _serves(server: ControlServer, connect: Connect) -> bool:
    return bool(connect(server).ask("ping")["result"] == "pong")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", REQUEST_LIMIT + 1),
        struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1",
        struct.pack(">I", 0),
        struct.pack(">I", 5) + b"\xdd\xff\xff\xff\xff",
        struct.pack(">I", 3) + b"\x93\x01\x02",
        struct.pack(">I", 2) + b"\x81\x01",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">I", 3000) + b"\x91" * 3000,
        struct.pack(">I", 1) + b"\x80",
        struct.pack(">I", 516) + b"\x82\xa1v" + b"\x91" * 511 + b"\xc0\x01",
        struct.pack(">I", 1028) + b"\x82\xa1v\x01\xa2op" + b"\x81\xa1a" * 340 + b"\xc0",
    ],
    ids=[
        "huge length",
        "over the limit",
        "invalid bytes",
        "empty",
        "four billion items",
        "array",
        "half a map",
        "http",
        "deep nesting",
        "no version",
        "nested version",
        "nested operation",
    ],
)
def test_garbage_ends_its_own_connection_only(
    runtime_dir: Path, connect: Connect, garbage: bytes
) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        bystander = connect(server)
        hostile = connect(server)
        hostile.sock.sendall(garbage)
        assert hostile.receive()["ok"] is False
        assert hostile.at_end()
        assert bystander.ask("ping")["result"] == "pong"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"v": 2, "op": "ping", "args": {}}, "version"),
        ({"op": "ping", "args": {}}, "version"),
        ({"v": 1, "op": 7, "args": {}}, "bad_request"),
        ({"v": 1, "op": "ping", "args": [1]}, "bad_request"),
        ({"v": 1, "op": "ping", "args": {1: 2}}, "bad_request"),
    ],
)
def test_a_request_of_another_shape_or_version_is_told_so(
    runtime_dir: Path, connect: Connect, message: object, code: str
) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        client = connect(server)
        client.send(message)
        assert client.receive()["error"]["code"] == code
        assert client.at_end()


def test_a_request_is_limited_in_depth_and_in_values() -> None:
    head = b"\x83\xa1v\x01\xa2op\xa1x\xa4args"
    decode_request(head + b"\x81\xa1a" * 14 + b"\xc0")
    with pytest.raises(ControlError, match="16 containers deep"):
        decode_request(head + b"\x81\xa1a" * 16 + b"\xc0")
    with pytest.raises(ControlError, match="1024 values"):
        decode_request(head + b"\x81\xa1a\x9f" + (b"\xdc\x00\x64" + b"\x80" * 100) * 15)


@pytest.mark.parametrize(
    "result", [b"\x91" * 900 + b"\xc0", b"\x81\xa1a" * 900 + b"\xc0"], ids=["lists", "maps"]
)
def test_a_reply_that_nobody_could_print_is_a_bad_reply(result: bytes) -> None:
    for reply in (
        b"\x82\xa2ok\xc3\xa6result" + result,
        b"\x82\xa2ok\xc2\xa5error\x82\xa4code" + result + b"\xa7message\xa1x",
    ):
        with pytest.raises(ControlError, match="16 containers deep"):
            decode_reply(reply)


def test_nested_array_headers_take_no_memory_for_what_never_comes() -> None:
    payload = b"\x82\xa2ok\xc3\xa6result" + b"\xdd\x00\x3f\xff\xff" * 500
    tracemalloc.start()
    with pytest.raises(ControlError, match="not a msgpack message"):
        decode_reply(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_request_that_comes_byte_by_byte_is_answered_and_others_meanwhile(
    runtime_dir: Path, connect: Connect
) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        slow = connect(server)
        payload = msgpack.packb({"v": 1, "op": "ping", "args": {}})
        for byte in struct.pack(">I", len(payload)) + payload:
            slow.sock.sendall(bytes([byte]))
            assert _serves(server, connect)
        assert slow.receive()["result"] == "pong"


def test_requests_sent_ahead_are_answered_in_order_and_what_is_behind_them_is_limited(
    runtime_dir: Path, connect: Connect
) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        eager = connect(server)
        payload = msgpack.packb({"v": 1, "op": "ping", "args": {}})
        frame = struct.pack(">I", len(payload)) + payload
        eager.sock.sendall(frame * 20 + struct.pack(">I", REQUEST_LIMIT + 1))
        assert [eager.receive()["result"] for _ in range(20)] == ["pong"] * 20
        assert eager.receive()["error"]["code"] == "too_large"
        assert eager.at_end()


def test_half_a_frame_holds_nobody_up_and_is_cut_off(runtime_dir: Path, connect: Connect) -> None:
    timeouts = Timeouts(read=0.1)
    with ControlServer(runtime_dir / "a.sock", HANDLERS, timeouts=timeouts) as server:
        slow = connect(server)
        slow.sock.sendall(struct.pack(">I", 100) + b"\x83")
        assert _serves(server, connect)
        assert slow.at_end()


def test_a_client_that_never_reads_its_reply_holds_nobody_up_and_is_cut_off(
    runtime_dir: Path, connect: Connect
) -> None:
    timeouts = Timeouts(write=0.2)
    with ControlServer(runtime_dir / "a.sock", HANDLERS, timeouts=timeouts) as server:
        stuck = connect(server)
        stuck.send({"v": 1, "op": "large", "args": {}})
        assert _serves(server, connect)
        hang_up = select.poll()
        hang_up.register(stuck.sock, 0)
        assert hang_up.poll(10_000), "the server has not closed the connection"
        received = 0
        while piece := stuck.sock.recv(2**20):
            received += len(piece)
        assert 0 < received < 32 * 2**20


def test_clients_that_vanish_in_the_middle_are_forgotten(
    runtime_dir: Path, connect: Connect
) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS) as server:
        for message in (b"", b"\x00", struct.pack(">I", 50) + b"\x83\xa1v"):
            client = connect(server)
            client.sock.sendall(message)
            client.sock.close()
        rude = connect(server)
        rude.send({"v": 1, "op": "large", "args": {}})
        rude.sock.recv(10)
        rude.sock.close()
        assert _serves(server, connect)


def test_a_crowd_of_silent_clients_does_not_lock_others_out(
    runtime_dir: Path, connect: Connect
) -> None:
    with ControlServer(runtime_dir / "a.sock", HANDLERS, max_connections=4) as server:
        crowd = [connect(server) for _ in range(12)]
        assert _serves(server, connect)
        assert crowd[0].at_end()


def test_two_hundred_bad_clients_cost_a_bounded_number_of_descriptors_and_nobody_an_answer(
    runtime_dir: Path, connect: Connect
) -> None:
    timeouts = Timeouts(idle=5.0, read=0.5, write=0.5)
    with ControlServer(runtime_dir / "a.sock", HANDLERS, timeouts=timeouts) as server:
        crowd = []
        for number in range(200):
            client = connect(server)
            crowd.append(client)
            if number % 4 == 0:
                client.sock.sendall(struct.pack(">I", 100) + b"\x83")
            elif number % 4 == 1:
                client.send({"v": 1, "op": "page", "args": {}})
            elif number % 4 == 2:
                client.sock.sendall(b"\0")
            if number % 20 == 0:
                assert _serves(server, connect)
                assert len(server._connections) <= 64
        assert _serves(server, connect)
        assert crowd[0].at_end()


def test_another_user_is_refused_without_an_answer(runtime_dir: Path, connect: Connect) -> None:
    def stranger(sock: socket.socket) -> int:
        return os.geteuid() + 1

    with ControlServer(runtime_dir / "a.sock", HANDLERS, credentials=stranger) as server:
        client = connect(server)
        assert client.at_end()


def test_a_client_whose_user_is_unknown_is_refused(runtime_dir: Path, connect: Connect) -> None:
    def unknown(sock: socket.socket) -> int:
        raise OSError("no credentials")

    with ControlServer(runtime_dir / "a.sock", HANDLERS, credentials=unknown) as server:
        assert connect(server).at_end()


def test_the_kernel_names_the_peer_s_user() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(ours) == os.geteuid()


def test_macos_credentials_are_parsed_and_doubtful_ones_refused() -> None:
    groups = struct.pack("=h2x16I", 1, *range(16))
    assert parse_xucred(struct.pack("=II", 0, 501) + groups) == 501
    for doubtful in (b"", b"\0" * 7, struct.pack("=II", 1, 501) + groups):
        with pytest.raises(OSError, match="LOCAL_PEERCRED"):
            parse_xucred(doubtful)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_decode_to_a_request_or_a_control_error(payload: bytes) -> None:
    try:
        request = decode_request(payload)
    except ControlError:
        return
    assert isinstance(request.op, str)
