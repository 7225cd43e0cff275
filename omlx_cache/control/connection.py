"""One client of the control socket: a state machine that never blocks.

It reads a request, waits for its answer, and writes the reply, one after the other, and says until
when the client may take. Only the control thread touches it; others may read its state.
"""

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from omlx_cache.control.errors import ControlError
from omlx_cache.control.frames import (
    HEADER,
    REQUEST_LIMIT,
    Request,
    decode_request,
    encode_error,
    frame_length,
)

_CHUNK = 64 * 2**10

Dispatch = Callable[["Connection", Request], None]
"""Takes a request whose reply comes to `Connection.reply`, sooner or later."""
State = Literal["reading", "answering", "writing", "closed"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that a client may take: between requests, to send one, to take the reply."""

    idle: float = 60.0
    read: float = 5.0
    write: float = 30.0


class Connection:
    """A client's socket with its half-read request or half-written reply.

    Mutable: `_incoming`, `_answering`, `_outgoing`, `_closing`, `deadline`; no lock, one thread.
    """

    def __init__(
        self, sock: socket.socket, dispatch: Dispatch, timeouts: Timeouts, now: float
    ) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.deadline = now + timeouts.idle
        self._dispatch = dispatch
        self._timeouts = timeouts
        self._incoming = bytearray()
        self._answering = False
        self._outgoing = memoryview(b"")
        self._closing = False

    @property
    def state(self) -> State:
        if self.socket.fileno() < 0:
            return "closed"
        if self._answering:
            return "answering"
        return "writing" if self._outgoing else "reading"

    @property
    def idle(self) -> bool:
        """True between two requests: nobody is hurt when it is closed."""
        return not (self._incoming or self._outgoing or self._answering)

    def on_readable(self, now: float) -> None:
        """Take what has come and answer a complete request. Closes at the end of the stream."""
        try:
            data = self.socket.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not data:
            self.close()
            return
        if not self._incoming:
            self.deadline = now + self._timeouts.read
        self._incoming += data
        self._answer_next(now)

    def on_writable(self, now: float) -> None:
        """Send what the client takes; afterwards look at a request that it has sent meanwhile."""
        try:
            sent = self.socket.send(self._outgoing)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._outgoing = self._outgoing[sent:]
        if self._outgoing:
            return
        if self._closing:
            self.close()
            return
        self.deadline = now + (self._timeouts.read if self._incoming else self._timeouts.idle)
        self._answer_next(now)

    def reply(self, frame: bytes, now: float) -> None:
        """Take the answer to the request that was dispatched; sends nothing yet."""
        self._answering = False
        self._outgoing = memoryview(frame)
        self.deadline = now + self._timeouts.write

    def close(self) -> None:
        """Close the socket and forget both buffers."""
        self.socket.close()
        self._incoming.clear()
        self._outgoing = memoryview(b"")

    def _answer_next(self, now: float) -> None:
        try:
            payload = self._take_frame()
            if payload is None:
                return
            request = decode_request(payload)
        except ControlError as error:
            # The stream is out of step, or the client speaks another language: say so and end.
            self._closing = True
            self._incoming.clear()
            self.reply(encode_error(error), now)
            return
        # The time that the store takes is not the client's.
        self._answering, self.deadline = True, math.inf
        self._dispatch(self, request)

    def _take_frame(self) -> bytearray | None:
        if len(self._incoming) < HEADER.size:
            return None
        length = frame_length(self._incoming[: HEADER.size], REQUEST_LIMIT)
        if len(self._incoming) < HEADER.size + length:
            return None
        payload = self._incoming[HEADER.size : HEADER.size + length]
        del self._incoming[: HEADER.size + length]
        return payload
