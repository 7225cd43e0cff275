"""One answer of the status paths, before any server has sent it; and events as a stream
(Server-Sent Events)."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import chain
from typing import Any

from omlx_cache.control.serialization import encoded

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
EVENTS = "text/event-stream"

ALWAYS = {
    "Connection": "close",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""No header lets another origin in: all that a browser shows comes from here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body and headers; with a `stream` the body follows piece by piece, until the
    client leaves or the server ends. Call `release` at the end in any case."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Iterable[bytes] | None = None
    release: Callable[[], None] = lambda: None

    def send(self, handler: BaseHTTPRequestHandler) -> None:
        """Raises OSError for a client that does not take it."""
        try:
            handler.send_response(self.status)
            for name, value in self.all_headers().items():
                handler.send_header(name, value)
            handler.end_headers()
            if handler.command != "HEAD":
                for piece in chain([self.body], self.stream or ()):
                    handler.wfile.write(piece)
        finally:
            self.release()

    def all_headers(self) -> dict[str, str]:
        length = {} if self.stream is not None else {"Content-Length": str(len(self.body))}
        return {"Content-Type": self.content_type, **length, **ALWAYS, **self.headers}


def refusal(status: int, text: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, TEXT, f"{text}\n".encode("utf-8", "backslashreplace"), named)


MOST_STREAMS = 8
POLL_SECONDS = 0.5
ALIVE_SECONDS = 15.0
"""A comment comes at least so often: a closed connection is noticed by it."""
BATCH = 500
Ask = Callable[[Mapping[str, object]], Mapping[str, Any]]


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
    """The number to resume from stands at the last event."""
    lines: list[bytes] = []
    if found["dropped"]:
        lines.append(b'event: dropped\ndata: {"dropped": %d}\n\n' % found["dropped"])
    named = [(event["kind"], event) for event in found.get("events", ())]
    named += [("batch", batch) for batch in found.get("batches", ())]
    lines += [b"event: %s\ndata: %s\n\n" % (name.encode(), encoded(one)) for name, one in named]
    if lines:
        lines[-1] = b"id: %d\n%s" % (found["upto"], lines[-1])
    return b"".join(lines)
