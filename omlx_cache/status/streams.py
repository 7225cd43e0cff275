"""Events as a stream that a client follows (Server-Sent Events), bounded in number."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from omlx_cache.status.documents import encoded
from omlx_cache.status.source import Document

MOST_STREAMS = 8
POLL_SECONDS = 0.5
ALIVE_SECONDS = 15.0
"""A comment comes at least so often: whoever has gone is noticed by it."""
BATCH = 500
Ask = Callable[[int | None, int], Document]
"""Gives events beyond a number, so many at most: `Source.events`, `KvSource.kv_events`."""


class Streams:
    """The places for streams of one server. `_lock` guards `_open`; `ending` is set once."""

    def __init__(self, most: int = MOST_STREAMS) -> None:
        self.most = most
        self.ending = threading.Event()
        self._lock = threading.Lock()
        self._open = 0

    def follow(self, ask: Ask, after: int | None) -> "EventStream | None":
        """Return a stream of what comes beyond the number `after`; None when all are taken."""
        with self._lock:
            if self._open >= self.most or self.ending.is_set():
                return None
            self._open += 1
        return EventStream(self, ask, after)

    def leave(self) -> None:
        with self._lock:
            self._open -= 1

    def close(self) -> None:
        """End all streams, within a poll; there will be no others."""
        self.ending.set()


class EventStream:
    """One client's stream. Only its own thread touches it."""

    def __init__(self, streams: Streams, ask: Ask, after: int | None) -> None:
        self._streams, self._ask, self._after = streams, ask, after
        self._has_left = False

    def chunks(self) -> Iterator[bytes]:
        """Yield what to send, until the streams are closed or the source fails. Events come at
        least once: a client that was cut off says in `Last-Event-ID` how far it had come."""
        yield b"retry: 2000\n\n"
        last = time.monotonic()
        ending = self._streams.ending
        while not ending.is_set():
            found = self._ask(self._after, BATCH)
            text = _written(found)
            upto = found.get("upto")
            if isinstance(upto, int):
                self._after = upto
            if text:
                yield text
                last = time.monotonic()
            elif time.monotonic() - last >= ALIVE_SECONDS:
                yield b": alive\n\n"
                last = time.monotonic()
            if not text:
                ending.wait(POLL_SECONDS)

    def close(self) -> None:
        """Give the place back; idempotent."""
        if not self._has_left:
            self._has_left = True
            self._streams.leave()


def _written(found: Mapping[str, object]) -> bytes:
    """Return events as the format has them. The number to resume from stands at the last one."""
    events, dropped = found.get("events"), found.get("dropped")
    lines: list[bytes] = []
    if isinstance(dropped, int) and dropped > 0:
        lines.append(b'event: dropped\ndata: {"dropped": %d}\n\n' % dropped)
    if isinstance(events, list | tuple):
        for event in events:
            kind = event.get("kind") if isinstance(event, Mapping) else None
            # A line break in a name would end it.
            name = kind if isinstance(kind, str) and kind.isidentifier() else "message"
            lines.append(b"event: %s\ndata: %s\n\n" % (name.encode(), encoded(event)))
    batches = found.get("batches")
    for batch in batches if isinstance(batches, list | tuple) else ():
        lines.append(b"event: batch\ndata: %s\n\n" % encoded(batch))
    upto = found.get("upto")
    if lines and isinstance(upto, int):
        lines[-1] = b"id: %d\n%s" % (upto, lines[-1])
    return b"".join(lines)
