"""The proxy that other tests stand before their servers does to bytes what it was told."""

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from kit import leaks
from kit.remote.processes import free_port
from kit.remote.proxy import FREE, LOCAL, Proxy, Way, proxy_to

PATIENT = 30.0


class Echo(socketserver.BaseRequestHandler):
    """Says what it hears."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True


@pytest.fixture
def port() -> Iterator[int]:
    before = leaks.now()
    with EchoServer((LOCAL, 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
    assert not leaks.left_since(before)


@pytest.fixture
def proxy(port: int) -> Iterator[Proxy]:
    with proxy_to(port) as proxy:
        yield proxy


@contextlib.contextmanager
def connected(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection((LOCAL, proxy.port), timeout=PATIENT) as client:
        yield client


def heard(client: socket.socket, nbytes: int) -> bytes:
    """Return what comes until there are so many bytes, or no more."""
    found = b""
    while len(found) < nbytes and (data := client.recv(nbytes - len(found))):
        found += data
    return found


def said(client: socket.socket, data: bytes) -> bytes:
    """Return the echo."""
    sending = threading.Thread(target=client.sendall, args=(data,))
    sending.start()
    try:
        return heard(client, len(data))
    finally:
        sending.join()


def test_bytes_pass_and_are_counted(proxy: Proxy) -> None:
    large = bytes(range(256)) * 8192
    with connected(proxy) as one, connected(proxy) as other:
        assert said(one, b"hello") == b"hello"
        assert said(one, b"again") == b"again"
        assert said(other, large) == large
    assert proxy.seen.connections == 2
    assert proxy.seen.up == proxy.seen.down == 10 + len(large)
    assert proxy.seen.round_trips >= 3


def test_an_end_of_what_is_said_passes_too(proxy: Proxy) -> None:
    with connected(proxy) as client:
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert heard(client, 100) == b"last"


def test_a_delay_holds_bytes_up_and_lets_as_many_through(proxy: Proxy) -> None:
    proxy.delay(0.4)
    large = bytes(4 << 20)
    with connected(proxy) as client:
        began = time.monotonic()
        assert said(client, large) == large
        # A round trip for each of its 64 pieces would take over 25 seconds.
        assert 0.4 <= time.monotonic() - began < 15


def test_a_rate_limits_all_connections_together(proxy: Proxy) -> None:
    proxy.rules(down=Way(rate=1e6))
    with connected(proxy) as one, connected(proxy) as other:
        began = time.monotonic()
        for client in (one, other):
            client.sendall(bytes(150_000))
        assert len(heard(one, 150_000)) == len(heard(other, 150_000)) == 150_000
        assert time.monotonic() - began >= 0.25


def test_a_trickle_brings_a_byte_each_time(proxy: Proxy) -> None:
    proxy.rules(down=Way(trickle=0.02))
    with connected(proxy) as client:
        began = time.monotonic()
        assert said(client, b"0123456789") == b"0123456789"
        assert time.monotonic() - began >= 0.15


@pytest.mark.parametrize("after", [0, 1, 1000, 100_000])
def test_a_connection_is_cut_behind_so_many_bytes(proxy: Proxy, after: int) -> None:
    proxy.rules(down=Way(cut_after=after))
    with connected(proxy) as client:
        client.sendall(bytes(200_000))
        with contextlib.suppress(ConnectionResetError):
            assert len(heard(client, 200_000)) == after
        assert proxy.seen.down == after
    proxy.free()
    with connected(proxy) as client:
        assert said(client, b"well") == b"well"


def test_bytes_are_counted_from_when_the_rule_was_set(proxy: Proxy) -> None:
    with connected(proxy) as client:
        assert said(client, bytes(500)) == bytes(500)
        proxy.rules(down=Way(cut_after=10))
        client.sendall(bytes(500))
        with contextlib.suppress(ConnectionResetError):
            assert len(heard(client, 500)) == 10


def test_a_cut_may_be_a_reset(proxy: Proxy) -> None:
    proxy.rules(up=Way(cut_after=3, resets=True))
    with connected(proxy) as client:
        client.sendall(b"12345")
        with pytest.raises(ConnectionResetError):
            heard(client, 100)


def test_bytes_are_damaged_where_it_was_told(proxy: Proxy) -> None:
    sent = bytes(200_000)
    proxy.rules(down=Way(corrupt_at=70_000))
    with connected(proxy) as client:
        came = said(client, sent)
    assert [at for at, byte in enumerate(came) if byte] == [70_000]
    proxy.rules(down=Way(corrupt_every=50_000))
    with connected(proxy) as client:
        came = said(client, sent)
    assert [at for at, byte in enumerate(came) if byte] == [49_999, 99_999, 149_999, 199_999]


def test_a_stalled_connection_says_nothing_until_it_may(proxy: Proxy) -> None:
    with connected(proxy) as client:
        proxy.rules(down=Way(stalls=True))
        client.sendall(b"hello")
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(PATIENT)
        proxy.rules(down=FREE)
        assert heard(client, 5) == b"hello"


def test_new_connections_are_refused_and_taken_again_on_the_same_port(proxy: Proxy) -> None:
    with connected(proxy) as old:
        assert said(old, b"a") == b"a"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError), connected(proxy):
            pass
        assert said(old, b"b") == b"b"
    proxy.accept()
    with connected(proxy) as client:
        assert said(client, b"c") == b"c"


def test_all_connections_are_reset(proxy: Proxy) -> None:
    with connected(proxy) as one, connected(proxy) as other:
        assert said(one, b"a") == said(other, b"a")
        proxy.reset()
        for client in (one, other):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert proxy.connections == 0


def test_a_server_that_is_not_there_resets(proxy: Proxy) -> None:
    with (
        proxy_to(free_port()) as nowhere,
        pytest.raises(ConnectionResetError),
        connected(nowhere) as client,
    ):
        client.recv(1)


def test_nothing_is_left_of_a_proxy_with_connections_in_every_state(port: int) -> None:
    before = leaks.now()
    with contextlib.ExitStack() as clients:
        with proxy_to(port) as proxy:
            for rule in (FREE, Way(stalls=True), Way(delay=60), Way(trickle=60), Way(rate=1)):
                proxy.rules(up=rule)
                clients.enter_context(connected(proxy)).sendall(b"something")
        proxy.close()
    assert not leaks.left_since(before)
