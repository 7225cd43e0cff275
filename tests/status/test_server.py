"""The status port with real sockets: bounded, on loopback, and nobody at another's expense."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kit.status import Known, get, process, said, serve
from omlx_cache.control.server import ApiServer
from omlx_cache.settings.names import ConfigError
from omlx_cache.status.answer import MOST_STREAMS

EVENTS = b"GET /status/events HTTP/1.1\r\nHost: localhost\r\n%s\r\n"


@pytest.fixture
def source() -> Known:
    return Known(process(1), process(2, "run"))


@pytest.fixture
def server(source: Known) -> Iterator[ApiServer]:
    with serve(source, most=4) as opened:
        yield opened


def connect(server: ApiServer, request: bytes = b"") -> socket.socket:
    client = socket.create_connection(server.server_address[:2], timeout=20)
    client.sendall(request)
    return client


def test_it_answers_on_a_free_port_of_loopback(server: ApiServer) -> None:
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/status"
    status, headers, body = get(server, "/metrics")
    assert status == 200
    assert int(headers["Content-Length"]) == len(body)
    assert get(server, "/metrics", method="HEAD")[0::2] == (200, b"")
    assert b'omlx_cache_up{pid="2",store="run"} 1.0' in body


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * 4000 + b"\r\n") * 20 + b"\r\n", b"413"),
        (b"PUT /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"501"),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"z" * 200_000, b"405"),
    ],
)
def test_garbage_gets_a_reason_and_the_next_client_its_answer(
    server: ApiServer, request_bytes: bytes, expected: bytes
) -> None:
    answer = said(server, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + expected), answer[:200]
    assert answer.partition(b"\r\n\r\n")[2].strip()
    assert get(server, "/metrics")[0] == 200


def test_only_loopback_is_served_without_a_token(source: Known) -> None:
    with pytest.raises(ConfigError, match="OMLX_CACHE_STATUS_TOKEN"):
        serve(source, host="0.0.0.0")
    for none in ("", 5):
        with pytest.raises(ConfigError, match="empty or no text"):
            serve(source, token=none)  # type: ignore[arg-type]
    with serve(source, host="0.0.0.0", token="secret") as server:
        assert get(server, "/metrics")[0] == 401
        assert get(server, "/metrics", {"Authorization": "Bearer secret"})[0] == 200


def test_a_port_that_is_taken_is_named(server: ApiServer, source: Known) -> None:
    with pytest.raises(
        OSError, match=f"port {server.server_address[1]}: Address already in use; port 0"
    ):
        serve(source, server.server_address[1])
    for none in (70000, "x"):
        with pytest.raises(ConfigError, match=f"got {none!r}"):
            serve(source, none)  # type: ignore[arg-type]


def test_events_are_streamed_and_resumed_where_a_client_was_cut_off(
    server: ApiServer, source: Known
) -> None:
    source.happened = [{"kind": "stored", "number": n} for n in range(1, 4)]
    with connect(server, EVENTS % b"") as client:
        text = _until(client, b'"number": 3}\n\n')
        assert b"event: stored" in text
        assert b"id: 3\n" in text
        source.happened += [{"kind": "removed", "number": 4}]
        assert b"event: removed" in _until(client, b'"number": 4}\n\n')
    with connect(server, EVENTS % b"Last-Event-ID: 3\r\n") as client:
        assert b"stored" not in _until(client, b'"number": 4}\n\n')


def test_a_stream_whose_client_has_gone_makes_room_for_another(
    source: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx_cache.status.answer.POLL_SECONDS", 0.01)
    source.happened = [{"kind": "stored", "number": 1}]
    with serve(source) as server, ExitStack() as stack:
        for _ in range(MOST_STREAMS):
            _until(stack.enter_context(connect(server, EVENTS % b"")), b'"number": 1}\n\n')
        assert said(server, EVENTS % b"").startswith(b"HTTP/1.1 503")
        stack.close()
        deadline = time.monotonic() + 20
        while True:
            # It is noticed when something is sent.
            source.happened.append({"kind": "stored", "number": 2})
            with connect(server, EVENTS % b"") as client:
                if client.recv(12) == b"HTTP/1.1 200":
                    break
            assert time.monotonic() < deadline


def test_dropped_events_are_told(source: Known) -> None:
    class Full(Known):
        def events(self, after: int | None, limit: int) -> dict[str, object]:
            lost = 7 if after is None else 0
            return {"events": [], "upto": 9, "dropped": lost}

    with serve(Full()) as server, connect(server, EVENTS % b"") as client:
        text = _until(client, b'{"dropped": 7}\n\n')
        assert b"id: 9\nevent: dropped\n" in text


def _until(client: socket.socket, end: bytes) -> bytes:
    text = b""
    while not text.endswith(end):
        piece = client.recv(65536)
        assert piece, text
        text += piece
    return text


def test_closing_ends_every_thread_and_connection(source: Known) -> None:
    source.happened = [{"kind": "stored", "number": 1}]
    with serve(source) as server, connect(server), connect(server, EVENTS % b"") as followed:
        _until(followed, b'"number": 1}\n\n')
        server.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("omlx-cache-status")]
        with pytest.raises(OSError, match="refused"):
            connect(server)
