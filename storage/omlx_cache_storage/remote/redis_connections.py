"""Connections of the `redis` package whose answers have an end, whatever a server says, and its
errors in the words of the remote tier. A pool of the client takes one of these classes as its
`connection_class`, with `allowed` among its arguments."""

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
from redis import exceptions as failures
from redis._parsers import _RESP2Parser
from redis._parsers.socket import SERVER_CLOSED_CONNECTION_ERROR, SYM_CRLF, SocketBuffer
from redis.sentinel import (
    MasterNotFoundError,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.utils import SENTINEL

from omlx_cache_storage.errors import Trouble
from omlx_cache_storage.io_threads import note_answer
from omlx_cache_storage.remote.engine import MEMBERS, RemoteError, meaning

PART_BYTES = 4 << 20
"""A server answers one command at a time: a longer part delays all other clients' commands. Parts
of 8 MiB came at half the rate on loopback. Writers and readers have to cut alike: it is never
changed."""
_MEMBER_BYTES = 512
"""No member of a set is as long: a tail's key, its group and three numbers."""
_WORD_BYTES = 512
_SAID_BYTES = 1 << 20
"""Bytes of a server's answer about itself: INFO, its commands, or the ranges of a large cluster."""
_LEAST_RATE = 64 << 10
"""Bytes a second: a read of slower values is abandoned."""
HANDSHAKE_BYTES = 64 << 10
"""Bytes of answers to a client's commands when it connects; no value was requested yet."""
DIRECT_BYTES = 64 << 10
"""Values of so much are received where they stay."""
PROGRESS_BYTES = 1 << 20
"""Bytes that must come within a reader's time-out, unless the whole answer does: at less than half
a megabyte a second computing is faster."""


_BY_WORD: dict[str, Trouble] = {
    "NOAUTH": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "auth",
    "DENIED": "auth",
    "OOM": "full",
    "MISCONF": "full",
    "LOADING": "throttled",
    "BUSY": "throttled",
    "TRYAGAIN": "throttled",
    "CLUSTERDOWN": "throttled",
    "MASTERDOWN": "throttled",
    "NOREPLICAS": "throttled",
    "READONLY": "lost",
    "MOVED": "throttled",
    "ASK": "throttled",
}
_BY_TEXT: dict[str, Trouble] = {
    "max number of clients": "throttled",
    # The client's word for a server that speaks, or hangs up, before it is asked.
    "Connection not ready": "throttled",
    "No connection available.": "timeout",
    # A server that wants a client's certificate.
    "ALERT_CERTIFICATE_REQUIRED": "auth",
    "ALERT_BAD_CERTIFICATE": "auth",
    "ALERT_UNKNOWN_CA": "auth",
    "Connection refused": "refused",
    "Host is unreachable": "refused",
    "No route to host": "refused",
    "Network is unreachable": "refused",
    "Host is down": "refused",
}
_BY_KIND: dict[type[BaseException], Trouble] = {
    failures.AuthenticationError: "auth",
    failures.AuthorizationError: "auth",
    failures.NoPermissionError: "auth",
    failures.OutOfMemoryError: "full",
    failures.BusyLoadingError: "throttled",
    failures.TryAgainError: "throttled",
    failures.ClusterDownError: "throttled",
    failures.ReadOnlyError: "lost",
    failures.AskError: "throttled",
    failures.ResponseError: "error",
    MasterNotFoundError: "error",
    failures.InvalidResponse: "lost",
    failures.TimeoutError: "timeout",
    ConnectionRefusedError: "refused",
    # The name of the host is not known.
    socket.gaierror: "refused",
    TimeoutError: "timeout",
    ssl.SSLCertVerificationError: "error",
}
_QUOTED = ", with args beginning with"


class AnswerLimit(NamedTuple):
    """The bytes and the seconds that all answers to some commands may take together."""

    nbytes: int
    seconds: float


Commands = Sequence[Sequence[Any]]


def allowed(seconds: float, commands: Commands) -> AnswerLimit:
    """Return the limit of the answers to commands: values have longer than words."""
    values = sum(command[0] == "GET" for command in commands)
    return AnswerLimit(sum(map(_most_bytes, commands)), seconds + values * PART_BYTES / _LEAST_RATE)


def _most_bytes(command: Sequence[Any]) -> int:
    name = str(command[0]).partition(" ")[0]
    if name == "GETRANGE":
        return _WORD_BYTES + int(command[3]) + 1 - int(command[2])
    if name == "ZRANGE":
        return _WORD_BYTES + MEMBERS * _MEMBER_BYTES
    if name == "GET":
        return _WORD_BYTES + PART_BYTES
    return _SAID_BYTES if name in ("INFO", "CLUSTER", "COMMAND", "SENTINEL") else _WORD_BYTES


class CountingSocket:
    """A socket that gives at most so many bytes, until a deadline; in all else the one it wraps.

    Raises ConnectionError where more comes, and TimeoutError at the deadline. For one thread at a
    time; `close` and `shutdown` may come from any.
    """

    def __init__(self, wrapped: Any, seconds: float) -> None:
        self._wrapped = wrapped
        self._patience: float | None = seconds
        self._unnoted = 0
        self.expect(HANDSHAKE_BYTES, seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def expect(self, nbytes: int, seconds: float) -> None:
        self._left = nbytes
        self._until = time.monotonic() + seconds

    def settimeout(self, seconds: float | None) -> None:
        self._patience = seconds
        self._wrapped.settimeout(seconds)

    def recv(self, nbytes: int, flags: int = 0) -> bytes:
        """Receive some bytes; with flags, which are for a glance, count none."""
        if not flags:
            self._wait_at_most()
        received = bytes(self._wrapped.recv(nbytes, flags))
        if not flags:
            self._count(len(received))
        return received

    def recv_into(self, target: memoryview) -> int:
        self._wait_at_most()
        nbytes = int(self._wrapped.recv_into(target))
        self._count(nbytes)
        return nbytes

    def may_give(self, nbytes: int) -> None:
        if nbytes > self._left:
            raise ConnectionError("the answer is longer than any answer to what was asked")

    def _wait_at_most(self) -> None:
        if self._patience != 0:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer has not ended in time")
            self._wrapped.settimeout(left if self._patience is None else min(left, self._patience))

    def _count(self, nbytes: int) -> None:
        self.may_give(nbytes)
        self._left -= nbytes
        self._unnoted += nbytes
        if self._unnoted >= PROGRESS_BYTES:
            self._unnoted = 0
            note_answer()


class _Buffer(SocketBuffer):
    """The client's buffer, past which a large value comes: it would copy that five times, and have
    other threads wait for each."""

    def read(self, length: int, timeout: float | object = SENTINEL) -> bytes:
        if length < DIRECT_BYTES:
            return super().read(length, timeout)
        socket: Any = self._sock
        begun = self.unread_bytes()
        ending = length + len(SYM_CRLF)
        socket.may_give(ending - begun)
        value = bytearray(ending)
        with memoryview(value) as view:
            filled = self._buffer.readinto(view)
            while filled < ending:
                came = socket.recv_into(view[filled:])
                if not came:
                    raise ConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
                filled += came
        del value[length:]
        return value  # type: ignore[return-value]


class _DirectParser(_RESP2Parser):
    def on_connect(self, connection: Any) -> None:
        super().on_connect(connection)  # type: ignore[no-untyped-call]
        self._buffer = _Buffer(connection._sock, self.socket_read_size, connection.socket_timeout)


class _Bounded:
    """The common part of all kinds of connections, beside the client's own. `allowed` limits all
    answers to commands that are sent at once."""

    _sock: Any

    def __init__(
        self, *args: Any, allowed: Callable[[Commands], AnswerLimit], **options: Any
    ) -> None:
        self._allowed = allowed
        self._expected = allowed(())
        # Not hiredis: it takes memory for all elements of an array once it knows their number.
        super().__init__(*args, parser_class=_DirectParser, **options)  # type: ignore[call-arg]

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
        if self._sock is not None:
            self._sock.expect(*expected)


class BoundedConnection(_Bounded, redis.Connection):
    """A connection by TCP."""


class BoundedTlsConnection(_Bounded, redis.SSLConnection):
    """A connection by TLS."""


class BoundedMasterConnection(_Bounded, SentinelManagedConnection):
    """A connection by TCP to the master that a Sentinel names."""


class BoundedTlsMasterConnection(_Bounded, SentinelManagedSSLConnection):
    """A connection by TLS to the master that a Sentinel names."""


def trouble(error: Exception, password: str | None) -> RemoteError:
    """Return what to raise instead of an error of the client. A server that does not know a command
    quotes the beginning of its arguments, a password or a page: that is cut off."""
    if isinstance(error, RemoteError):
        return error
    text = f"{type(error).__name__}: {error}".partition(_QUOTED)[0]
    if password:
        text = text.replace(password, "***")
    return RemoteError(_reason(error), text)


def _reason(error: Exception) -> Trouble:
    if isinstance(error, failures.RedisClusterException) and isinstance(error.__cause__, Exception):
        # The error with which a request for the map of slots ended.
        return _reason(error.__cause__)
    word = str(error).partition(" ")[0]
    if isinstance(error, failures.ResponseError) and word in _BY_WORD:
        return _BY_WORD[word]
    return meaning(error, _BY_TEXT, _BY_KIND) or (
        "lost" if isinstance(error, failures.ConnectionError | OSError) else "error"
    )
