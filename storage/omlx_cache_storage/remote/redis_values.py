"""Answers that are values, received into memory that is given for them.

The client hands out new memory for each answer, which has been copied twice by then. What it would
read next from a connection's socket is read here instead, to the last byte of what was asked for.
"""

from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as Gone
from redis.exceptions import InvalidResponse, ResponseError

from omlx_cache_storage.remote.slabs import Sink

_AHEAD_BYTES = 16 << 10
"""Read at once where it is not known yet what comes; of a value it is then copied."""
_MOST_DIGITS = 20
_ERROR_BYTES = 4096


def receive(connection: Any, count: int, sink: Sink, most_bytes: int) -> list[Any]:
    """Return the next `count` answers, each to a command whose answer is one value, or a word: its
    bytes, None for none, or the error that the server answered.

    Raises what a socket does, and errors of the client for an end, an answer of another kind or a
    value longer than `most_bytes`; nothing more can be read then.
    """
    socket = connection._sock
    if socket is None:
        raise Gone("Connection closed by another thread.")
    incoming = _Incoming(socket, sink, most_bytes)
    answers = [incoming.answer(connection._parser.parse_error) for _ in range(count)]
    if incoming.more:
        raise InvalidResponse("the server said more than it was asked")
    return answers


class _Incoming:
    """What comes over one socket; between answers to the last one nothing is left of it."""

    def __init__(self, socket: Any, sink: Sink, most_bytes: int) -> None:
        self._socket = socket
        self._sink = sink
        self._most_bytes = most_bytes
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._start = self._stop = 0

    @property
    def more(self) -> bool:
        """True when something came that was not read yet."""
        return self._start < self._stop

    def answer(self, parsed: Callable[[str], Exception]) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$" and rest == b"-1":
            return None
        if kind == b"$" and rest.isdigit() and len(rest) <= _MOST_DIGITS:
            return self._value(int(rest))
        if kind == b"+":
            return rest
        if kind == b"-":
            error = parsed(rest.decode("utf-8", "replace"))
            if isinstance(error, ResponseError):
                return error
            raise error
        raise InvalidResponse(f"a value was asked for, the answer begins with {line[:20]!r}")

    def _value(self, nbytes: int) -> memoryview:
        if nbytes > self._most_bytes:
            raise InvalidResponse(f"a value of {nbytes} bytes is longer than a part may be")
        value = self._sink.memory(nbytes)
        self._fill(value)
        if self._line():
            raise InvalidResponse("a value is longer than the server said")
        return value

    def _fill(self, target: memoryview) -> None:
        filled = 0
        while filled < target.nbytes:
            if self._start < self._stop or target.nbytes - filled < _AHEAD_BYTES:
                # What was read ahead, or is read with what follows it in one go.
                some = self._some(target.nbytes - filled)
                count = len(some)
                target[filled : filled + count] = some
            else:
                count = self._received(target[filled:])
            filled += count
            self._sink.came(count)

    def _some(self, most: int) -> memoryview:
        """Return up to `most` of the next bytes, and at least one."""
        self._read_ahead()
        start = self._start
        self._start = min(self._stop, start + most)
        return self._ahead[start : self._start]

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\r\n"):
            self._read_ahead()
            there = bytes(self._ahead[self._start : self._stop])
            end = there.find(b"\n") + 1 or len(there)
            line += there[:end]
            self._start += end
            if len(line) > _ERROR_BYTES:
                raise InvalidResponse("an answer's first line has no end")
        return line[:-2]

    def _read_ahead(self) -> None:
        """Have something of what comes next."""
        if self._start == self._stop:
            self._start, self._stop = 0, self._received(self._ahead)

    def _received(self, target: memoryview) -> int:
        count = int(self._socket.recv_into(target))
        if not count:
            raise Gone("Connection closed by server.")
        return count
