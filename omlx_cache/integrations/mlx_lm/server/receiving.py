"""Reading a request from a client that may be slow, silent or lying about its length."""

import io
import socket
import time
from contextlib import suppress
from email.message import Message
from typing import Any

from omlx_cache.integrations.mlx_lm.server.limits import Limits
from omlx_cache.integrations.mlx_lm.server.refusals import BadRequest, NoLength, TooLarge, TooSlow

_PIECE = 1 << 16
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 1 << 30


class Incoming(io.RawIOBase):
    """What a client sends: TimeoutError when it pauses for too long, or takes too long in all."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._connection = connection
        self._pause = limits.receive_seconds
        self._deadline = time.monotonic() + limits.whole_receive_seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to come in")
        self._connection.settimeout(min(self._pause, left))
        return self._connection.recv_into(buffer)


def body_length(headers: Message, most: int) -> int:
    """Return how many bytes the body has, as its header says; raises Refused. Reads nothing."""
    if headers.get("Transfer-Encoding") is not None:
        raise NoLength("Content-Length header is required; Transfer-Encoding is not understood")
    lengths = {length.strip() for length in headers.get_all("Content-Length", [])}
    if not lengths:
        raise NoLength("Content-Length header is required")
    length = lengths.pop()
    if lengths or not (length.isascii() and length.isdecimal()):
        raise BadRequest("Invalid Content-Length header")
    if len(length) > 18 or int(length) > most:
        raise TooLarge(
            f"the body must have at most {most} bytes (serve --max-body-bytes), not {length[:20]}"
        )
    return int(length)


def read_body(stream: io.BufferedReader, length: int) -> bytearray:
    """Read exactly `length` bytes, holding what has come and no more; raises TooSlow."""
    body = bytearray()
    while len(body) < length:
        try:
            piece = stream.read1(min(_PIECE, length - len(body)))
        except TimeoutError:
            raise TooSlow(f"only {len(body)} of {length} bytes came in time") from None
        if not piece:
            raise TooSlow(f"the body ended after {len(body)} of {length} bytes")
        body += piece
    return body


def linger(connection: socket.socket, unread: bool) -> None:
    """Let the client read its answer: closing with bytes of it unread would reset the connection,
    and lose the answer. Blocks for some seconds at most, only for a client that still sends."""
    deadline = time.monotonic() + _LINGER_SECONDS
    scratch = bytearray(_PIECE)
    left = _LINGER_BYTES
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.setblocking(False)
        if not unread:
            # Nothing there, or the end: BlockingIOError and zero, and nothing to wait for.
            left = _LINGER_BYTES if connection.recv_into(scratch) else 0
        while left > 0 and (wait := deadline - time.monotonic()) > 0:
            connection.settimeout(min(wait, 1.0))
            received = connection.recv_into(scratch)
            if not received:
                return
            left -= received
