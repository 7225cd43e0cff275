"""Events as a stream that a client follows (Server-Sent Events), bounded in number."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omlx_cache.status.documents import encoded

MOST_STREAMS = 8
POLL_SECONDS = 0.5
ALIVE_SECONDS = 15.0
"""A comment comes at least so often: whoever has gone is noticed by it."""
BATCH = 500
Ask = Callable[[Mapping[str, object]], Mapping[str, Any]]
"""The operation `events`."""


class Streams:
    """The places for streams of one server; `ending` is set once."""

    def __init__(self, most: int = MOST_STREAMS) -> None:
        self.most = most
        self.ending = threading.Event()
        self._places = threading.BoundedSemaphore(most)

    def follow(self, ask: Ask, values: Mapping[str, object]) -> "EventStream | None":
        """Return a stream of what comes beyond the number `after`; None when all are taken."""
        if self.ending.is_set() or not self._places.acquire(blocking=False):
            return None
        return EventStream(ask, values, self.ending, self._places)

    def close(self) -> None:
        """End all streams, within a poll; there will be no others."""
        self.ending.set()


class EventStream:
    """One client's stream. Only its own thread touches it."""

    def __init__(
        self,
        ask: Ask,
        values: Mapping[str, object],
        ending: threading.Event,
        places: threading.BoundedSemaphore,
    ) -> None:
        self._ask, self._ending, self._places = ask, ending, places
        self._values = {**values, "limit": BATCH}
        self._has_left = False

    def chunks(self) -> Iterator[bytes]:
        """Yield what to send, until the streams are closed or the source fails. Events come at
        least once: a client that was cut off says in `Last-Event-ID` how far it had come."""
        yield b"retry: 2000\n\n"
        last = time.monotonic()
        while not self._ending.is_set():
            found = self._ask(self._values)
            text = _written(found)
            self._values["after"] = found["upto"]
            if text:
                yield text
                last = time.monotonic()
            elif time.monotonic() - last >= ALIVE_SECONDS:
                yield b": alive\n\n"
                last = time.monotonic()
            if not text:
                self._ending.wait(POLL_SECONDS)

    def close(self) -> None:
        """Give the place back; idempotent."""
        if not self._has_left:
            self._has_left = True
            self._places.release()


def _written(found: Mapping[str, Any]) -> bytes:
    """Return events as the format has them. The number to resume from stands at the last one."""
    lines: list[bytes] = []
    if found["dropped"]:
        lines.append(b'event: dropped\ndata: {"dropped": %d}\n\n' % found["dropped"])
    for event in found.get("events", ()):
        lines.append(b"event: %s\ndata: %s\n\n" % (event["kind"].encode(), encoded(event)))
    for batch in found.get("batches", ()):
        lines.append(b"event: batch\ndata: %s\n\n" % encoded(batch))
    if lines:
        lines[-1] = b"id: %d\n%s" % (found["upto"], lines[-1])
    return b"".join(lines)
