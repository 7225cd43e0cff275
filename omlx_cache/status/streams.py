"""Events as a stream that a client follows (Server-Sent Events)."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omlx_cache.control.serialization import encoded

MOST_STREAMS = 8
POLL_SECONDS = 0.5
ALIVE_SECONDS = 15.0
"""A comment comes at least so often: whoever has gone is noticed by it."""
BATCH = 500
Ask = Callable[[Mapping[str, object]], Mapping[str, Any]]
"""The operation `events`."""


def stream(ask: Ask, values: Mapping[str, object], ending: threading.Event) -> Iterator[bytes]:
    """Yield what to send of what comes beyond the number `after`, until `ending` is set or the
    source fails. Events come at least once: a client that was cut off says in `Last-Event-ID` how
    far it had come."""
    yield b"retry: 2000\n\n"
    last, after = time.monotonic(), values.get("after")
    while not ending.is_set():
        found = ask({**values, "after": after, "limit": BATCH})
        text, after = _written(found), found["upto"]
        if not text and time.monotonic() - last >= ALIVE_SECONDS:
            text = b": alive\n\n"
        if text:
            yield text
            last = time.monotonic()
        else:
            ending.wait(POLL_SECONDS)


def _written(found: Mapping[str, Any]) -> bytes:
    """Return events as the format has them. The number to resume from stands at the last one."""
    lines: list[bytes] = []
    if found["dropped"]:
        lines.append(b'event: dropped\ndata: {"dropped": %d}\n\n' % found["dropped"])
    named = [(event["kind"], event) for event in found.get("events", ())]
    named += [("batch", batch) for batch in found.get("batches", ())]
    lines += [b"event: %s\ndata: %s\n\n" % (name.encode(), encoded(one)) for name, one in named]
    if lines:
        lines[-1] = b"id: %d\n%s" % (found["upto"], lines[-1])
    return b"".join(lines)
