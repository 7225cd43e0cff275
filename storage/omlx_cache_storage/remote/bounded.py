"""Connections of the `redis` package whose answers have an end, whatever a server says.

Give one of these classes to a pool of the client as its `connection_class`, with `allowed` among
its arguments.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
from redis._parsers import _RESP2Parser
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from omlx_cache_storage.readers import note_answer

HANDSHAKE_BYTES = 64 << 10
"""Answers to what a client sends when it connects; nobody has asked for a value yet."""
PROGRESS_BYTES = 1 << 20
"""What has to come within a reader's time-out, or a whole answer: what comes at less than half a
megabyte a second is computed sooner."""


class AnswerLimit(NamedTuple):
    """The bytes and the seconds that all answers to some commands may take together."""

    nbytes: int
    seconds: float


Commands = Sequence[Sequence[Any]]


class CountingSocket:
    """A socket that gives at most so many bytes, until a deadline; in all else the one it wraps.

    Raises ConnectionError where more comes, and TimeoutError at the deadline. For one thread at a
    time; `close` and `shutdown` may come from any.
    """

    def __init__(self, wrapped: Any, seconds: float | None) -> None:
        self._wrapped = wrapped
        self._patience = seconds
        self._unnoted = 0
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
        self._unnoted += nbytes
        if self._unnoted >= PROGRESS_BYTES:
            self._unnoted = 0
            note_answer()


class _Bounded:
    """What all kinds of connections have beside the client's own.

    `allowed` says what all answers to commands that are sent at once may take together.
    """

    _sock: Any

    def __init__(
        self, *args: Any, allowed: Callable[[Commands], AnswerLimit], **options: Any
    ) -> None:
        self._allowed = allowed
        self._expected = allowed(())
        # Not hiredis: it takes memory for all elements of an array once it knows their number.
        super().__init__(*args, parser_class=_RESP2Parser, **options)  # type: ignore[call-arg]

    def _connect(self) -> CountingSocket:
        return CountingSocket(super()._connect(), self._expected.seconds)  # type: ignore[misc]

    def pack_commands(self, commands: Commands) -> Any:
        self._expected = self._allowed(commands)
        return super().pack_commands(commands)  # type: ignore[misc]

    def send_command(self, *command: Any, **options: Any) -> None:
        self._expected = self._allowed([command])
        super().send_command(*command, **options)  # type: ignore[misc]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        # To connect, the client sends commands of its own first.
        expected = self._expected
        super().send_packed_command(command, check_health)  # type: ignore[misc]
        socket = self._sock
        if socket is not None:
            socket.expect(*expected)


class BoundedConnection(_Bounded, redis.Connection):
    """A connection by TCP."""


class BoundedTlsConnection(_Bounded, redis.SSLConnection):
    """A connection by TLS."""


class BoundedMasterConnection(_Bounded, SentinelManagedConnection):
    """A connection by TCP to the master that a Sentinel names."""


class BoundedTlsMasterConnection(_Bounded, SentinelManagedSSLConnection):
    """A connection by TLS to the master that a Sentinel names."""
