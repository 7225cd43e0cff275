"""Bytes to a server and back, over a socket, for what an HTTP client would never send."""

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """An HTTP answer; status 0 when the connection was closed without one."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def error(self) -> str:
        """The text of `{"error": ...}`."""
        return str(json.loads(self.content)["error"])


def request(body: bytes, path: str = "/v1/completions", *headers: str) -> bytes:
    """A POST; its length is `body`'s where no header says otherwise."""
    named = any(header.lower().startswith("content-length") for header in headers)
    lines = [f"POST {path} HTTP/1.1", "Host: test", *headers]
    lines += [] if named else [f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def completion(**fields: Any) -> bytes:
    """A POST for a text completion of few tokens."""
    return request(json.dumps({"max_tokens": 2, "temperature": 0, **fields}).encode())


@contextmanager
def connected(url: str, timeout: float = 60.0) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout) as connection:
        yield connection


def exchange(url: str, sent: bytes, timeout: float = 60.0) -> Answer:
    """Send bytes and read to the end of the connection, as a client that writes all it has."""
    with connected(url, timeout) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
        return read_answer(connection)


def read_answer(connection: socket.socket, begun: bytes = b"") -> Answer:
    """Read to the end of the connection; `begun` is what was read of the answer before."""
    received = bytearray(begun)
    with suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            received += piece
    head, _, content = bytes(received).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split()
    status = int(words[1]) if len(words) > 1 and first.startswith("HTTP/") else 0
    pairs = (line.partition(":") for line in lines)
    return Answer(status, {name.lower(): value.strip() for name, _, value in pairs}, content)


@contextmanager
def filled(url: str, half: bytes, count: int) -> Iterator[tuple[list[socket.socket], Answer]]:
    """`count` connections that hold their places with `half` of a request each, and the answer to
    one request more, which finds none.

    A request that is answered with 200 held a place meanwhile, where a holder may have found none:
    that one comes again.
    """
    with ExitStack() as stack:
        holders: list[socket.socket] = []
        while True:
            refused, _, _ = select.select(holders, [], [], 0)
            holders = [holder for holder in holders if holder not in refused]
            while len(holders) < count:
                holder = stack.enter_context(connected(url))
                holder.sendall(half)
                holders.append(holder)
            answer = exchange(url, completion(prompt="b"))
            if answer.status != 200:
                break
        yield holders, answer
