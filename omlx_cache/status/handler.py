"""One connection of the status port: a request, an answer, and the end."""

import io
import logging
import socket
import time
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from typing import Any, BinaryIO, Literal

from omlx_cache.status.answer import Answer, refusal
from omlx_cache.status.routes import StatusRoutes

_log = logging.getLogger(__name__)

READ_SECONDS = 5.0
"""What a client may take to send its request."""
WRITE_SECONDS = 10.0
"""What it may take to read an answer, or a piece of a stream."""
MOST_BYTES = 32 * 2**10
_LINE = 8 * 2**10
_LINGER_SECONDS = 1.0

State = Literal["reading", "writing", "streaming"]


class TooLarge(Exception):
    """A request's line and headers are more than anybody needs."""


class Handler:
    """Answers one connection and closes it; raises nothing. `state` belongs to its own thread, and
    others read it; any thread may `cut`."""

    def __init__(self, connection: socket.socket, peer: str, routes: StatusRoutes) -> None:
        self.connection = connection
        self.state: State = "reading"
        self._peer, self._routes = peer, routes

    def cut(self) -> None:
        """End the connection: whatever its thread waits for, it waits no more."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Read a request, answer it, close."""
        try:
            with self.connection:
                self._answer()
        except (OSError, TimeoutError):
            _log.debug("status port: a client has gone", exc_info=True)
        except Exception:
            _log.exception("status port: a client was dropped")

    def _answer(self) -> None:
        incoming = _Incoming(self.connection, READ_SECONDS, MOST_BYTES)
        reader: BinaryIO = io.BufferedReader(incoming)
        method = ""
        try:
            request = _request(reader)
            if request is None:
                return
            method, target, headers = request
            answer = self._routes.answer(method, target, headers, self._peer)
        except TooLarge:
            answer = refusal(431, f"at most {MOST_BYTES:,} bytes of headers were expected")
        except (ValueError, HTTPException) as error:
            answer = refusal(400, f"an HTTP/1.1 request was expected: {error}")
        self.state = "writing"
        try:
            self._send(answer, method)
        finally:
            if answer.stream is not None:
                answer.stream.close()
        self._linger(answer.status)

    def _send(self, answer: Answer, method: str) -> None:
        headers = {**answer.all_headers(), "Date": formatdate(usegmt=True), "Connection": "close"}
        phrase = HTTPStatus(answer.status).phrase
        lines = [f"HTTP/1.1 {answer.status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join((*lines, "", "")).encode("latin-1", "replace")
        # One deadline for all of it: `sendall` counts its whole time.
        self.connection.settimeout(WRITE_SECONDS)
        self.connection.sendall(head if method == "HEAD" else head + answer.body)
        if answer.stream is not None:
            self.state = "streaming"
            for piece in answer.stream.chunks():
                self.connection.sendall(piece)

    def _linger(self, status: int) -> None:
        """Take what a refused client still sends: a close with unread bytes resets the connection,
        and the client may lose the answer."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            if status < 400:
                return
            left = _Incoming(self.connection, _LINGER_SECONDS, 2**20)
            with suppress(TooLarge):
                buffer = bytearray(2**14)
                while left.readinto(buffer):
                    pass


def _request(reader: BinaryIO) -> tuple[str, str, Any] | None:
    """Return a request's method, target and headers; None when none came. Raises ValueError for
    what is none, and OSError when the client is slow or gone."""
    line = reader.readline(_LINE + 1)
    if not line:
        return None
    if len(line) > _LINE:
        raise TooLarge
    words = line.decode("latin-1").split()
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise ValueError(f"got {line[:80]!r}")
    if not words[0].isalpha() or not words[0].isascii():
        raise ValueError(f"got the method {words[0][:40]!r}")
    return words[0], words[1], parse_headers(reader)


class _Incoming(io.RawIOBase):
    """Reads a connection until a deadline, and so many bytes at most."""

    def __init__(self, connection: socket.socket, seconds: float, most: int) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = time.monotonic() + seconds
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has come; raises TimeoutError beyond the deadline, TooLarge beyond the size."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the request took too long")
        if self._left <= 0:
            raise TooLarge
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(buffer)
        self._left -= count
        return count
