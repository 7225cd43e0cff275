"""Connections of the `redis` package whose answers have an end, whatever a server says.

They stand alone: give `BoundedConnection` or `BoundedTlsConnection` to a pool as its
`connection_class`, with `answer_bytes` and `answer_seconds` among its arguments.
"""

import time
from typing import Any

import redis
from redis._parsers import _RESP2Parser

HANDSHAKE_BYTES = 64 << 10
"""Answers to what a client sends when it connects; nobody has asked for a value yet."""


class CountingSocket:
    """A socket that gives at most so many bytes, until a deadline; in all else the one it wraps.

    Raises ConnectionError where more comes, and TimeoutError at the deadline. For one thread at a
    time; `close` and `shutdown` may come from any.
    """

    def __init__(self, wrapped: Any, seconds: float | None) -> None:
        self._wrapped = wrapped
        self._patience = seconds
        self.expect(HANDSHAKE_BYTES, seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def expect(self, nbytes: int, seconds: float | None) -> None:
        """Give so many bytes from now on, and for so many seconds."""
        self._left = nbytes
        self._until = None if seconds is None else time.monotonic() + seconds

    def settimeout(self, seconds: float | None) -> None:
        """Have one read wait at most for so long."""
        self._patience = seconds
        self._wrapped.settimeout(seconds)

    def recv(self, nbytes: int, flags: int = 0) -> bytes:
        if flags:
            # A glance, which takes nothing.
            return bytes(self._wrapped.recv(nbytes, flags))
        self._wait_in_time()
        received = bytes(self._wrapped.recv(nbytes))
        self._count(len(received))
        return received

    def recv_into(self, buffer: Any) -> int:
        self._wait_in_time()
        count = int(self._wrapped.recv_into(buffer))
        self._count(count)
        return count

    def _wait_in_time(self) -> None:
        if self._until is None or self._patience == 0:
            return
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer has not ended in time")
        self._wrapped.settimeout(left if self._patience is None else min(left, self._patience))

    def _count(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise ConnectionError("the answer is longer than any answer to what was asked")


class _Bounded:
    """What both kinds of connections have beside the client's own.

    All answers to what is sent at once have `answer_bytes` together, and `answer_seconds` from when
    it was sent. Both may be changed before a question is sent.
    """

    _sock: Any

    def __init__(
        self, *args: Any, answer_bytes: int, answer_seconds: float | None = None, **options: Any
    ) -> None:
        self.answer_bytes = answer_bytes
        self.answer_seconds = answer_seconds
        # Not hiredis: it takes memory for all elements of an array once it knows their number.
        super().__init__(*args, parser_class=_RESP2Parser, **options)  # type: ignore[call-arg]

    def _connect(self) -> CountingSocket:
        return CountingSocket(super()._connect(), self.answer_seconds)  # type: ignore[misc]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        super().send_packed_command(command, check_health)  # type: ignore[misc]
        socket = self._sock
        if socket is not None:
            socket.expect(self.answer_bytes, self.answer_seconds)


class BoundedConnection(_Bounded, redis.Connection):
    """A connection by TCP."""


class BoundedTlsConnection(_Bounded, redis.SSLConnection):
    """A connection by TLS."""
