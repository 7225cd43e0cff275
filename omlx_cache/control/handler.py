"""One connection of the server: a request, an answer, and the end."""

import io
import logging
import socket
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from omlx_cache.status.answer import Answer, refusal
from omlx_cache.status.routes import asked_path

_log = logging.getLogger(__name__)

READ_SECONDS = 5.0
WRITE_SECONDS = 10.0
"""A client may take so long to read an answer, or a piece of a stream."""
MOST_BYTES = 64 * 2**10
"""Of a request, its body included."""
_REFUSED = ("Transfer-Encoding", "Expect")
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 2**20


class RequestTooLarge(Exception):
    """A client sends more than any request needs."""


class ApiHandler(BaseHTTPRequestHandler):
    """Answers one request of one connection. Only its own thread touches it."""

    server: Any  # `ApiServer`, which makes these.
    protocol_version = default_request_version = "HTTP/1.1"
    # An answer to an unreadable request needs these.
    command = requestline = ""
    request_version = "HTTP/1.1"
    _is_refused = False

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile: Any = io.BufferedReader(Received(self.connection, READ_SECONDS, MOST_BYTES))

    def handle(self) -> None:
        try:
            # A command of an earlier version sends a frame, and waits: a close is what it reports.
            if self.rfile.peek(1)[:1] != b"\0":
                self.handle_one_request()
        except RequestTooLarge:
            self.send_error(413, f"at most {MOST_BYTES:,} bytes were expected")

    def _answer(self) -> None:
        headers: Any = self.headers
        lengths = headers.get_all("Content-Length", ["0"])
        if len(lengths) > 1 or headers.defects or any(name in headers for name in _REFUSED):
            return self.send_error(400, "one Content-Length, no Expect, whole headers")
        is_own = self.server.path is not None
        peer = None if is_own else str(self.client_address[0])
        body = self._body(lengths[0]) if is_own else b""
        with self.server.turn(self.request, asked_path(self.path)):
            answer = self.server.routes.answer(self.command, self.path, headers, peer, body)
        self._send(answer)

    do_GET = do_HEAD = do_POST = _answer

    def _body(self, length: str) -> bytes:
        """Raises RequestTooLarge, OSError for half of it."""
        if not (length.isascii() and length.isdigit() and len(length) < 7):
            raise RequestTooLarge
        return bytes(self.rfile.read(int(length)))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self._send(refusal(code, f"an HTTP/1.1 request was expected: {message}"))

    def _send(self, answer: Answer) -> None:
        self._is_refused = answer.status >= 400
        # For each piece one deadline: `sendall` counts its whole time.
        self.connection.settimeout(WRITE_SECONDS)
        answer.send(self)

    def version_string(self) -> str:
        return "omlx-cache"

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

    def finish(self) -> None:
        super().finish()
        if self._is_refused:
            linger(self.connection, _LINGER_SECONDS, _LINGER_BYTES)


class Received(io.RawIOBase):
    """Reads a connection until a deadline, and so many bytes at most."""

    def __init__(self, connection: socket.socket, seconds: float, most: int) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = time.monotonic() + seconds
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError when late, RequestTooLarge when too much, and ConnectionError at the
        end: half a request means nothing."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the request took too long")
        if self._left <= 0:
            raise RequestTooLarge
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(buffer)
        if not count:
            raise ConnectionAbortedError("the client left before its request ended")
        self._left -= count
        return count


def linger(connection: socket.socket, seconds: float, most: int) -> None:
    """Read and ignore the bytes that a client still sends: a close with unread bytes resets the
    connection, and the client may lose its answer."""
    with suppress(OSError, RequestTooLarge):
        connection.shutdown(socket.SHUT_WR)
        left = Received(connection, seconds, most)
        while left.read(2**14):
            pass
