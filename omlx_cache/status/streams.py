"""Events as a stream that a client follows (Server-Sent Events), bounded in number."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omlx_cache.control.answers import encoded

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

    def take(self) -> bool:
        """Take a place; False when there is none, or no longer."""
        return not self.ending.is_set() and self._places.acquire(blocking=False)

    def leave(self) -> None:
        """Give a place back, once."""
        self._places.release()

    def close(self) -> None:
        """End all streams, within a poll; there will be no others."""
        self.ending.set()

    def chunks(self, ask: Ask, values: Mapping[str, object]) -> Iterator[bytes]:
        """Yield what to send of what comes beyond the number `after`, until the streams are closed
        or the source fails. Events come at least once: a client that was cut off says in
        `Last-Event-ID` how far it had come."""
        yield b"retry: 2000\n\n"
        last, after = time.monotonic(), values.get("after")
        while not self.ending.is_set():
            found = ask({**values, "after": after, "limit": BATCH})
            text, after = _written(found), found["upto"]
            if not text and time.monotonic() - last >= ALIVE_SECONDS:
                text = b": alive\n\n"
            if text:
                yield text
                last = time.monotonic()
            else:
                self.ending.wait(POLL_SECONDS)


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
