"""One answer of the status paths, before any server has sent it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import chain

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
"""No header lets another origin in: what a browser shows of this comes from here."""


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
        """Answer a request of one connection; raises OSError for a client that does not take it."""
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
        """Return every header to send, but `Date`."""
        length = {} if self.stream is not None else {"Content-Length": str(len(self.body))}
        return {"Content-Type": self.content_type, **length, **ALWAYS, **self.headers}


def refusal(status: int, text: str, **headers: str) -> Answer:
    """Return an answer that says in words what was expected."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, TEXT, f"{text}\n".encode("utf-8", "backslashreplace"), named)
