"""One answer of the status paths, before any server has sent it; and events as a stream
(Server-Sent Events)."""

import hashlib
import hmac
import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

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


_SHOWN = 100


def refused(
    headers: Mapping[str, str], peer: str, token: str | None, *, is_page: bool
) -> Answer | None:
    """Return why a request is refused, None for one that may be answered; `headers` are all that
    came, under whatever names."""
    return next(_refusals(headers, peer, token, is_page=is_page), None)


def _refusals(
    headers: Mapping[str, str], peer: str, token: str | None, *, is_page: bool
) -> Iterator[Answer]:
    hosts = [value for name, value in headers.items() if name.lower() == "host"]
    if len(hosts) != 1:
        yield refusal(400, f"one Host header was expected; {len(hosts)} came")
    said, (host,) = {name.lower(): value for name, value in headers.items()}, hosts
    # From another machine, or under a name that may be any host's.
    if token is None and not is_loopback(peer):
        text = "without a token this answers its own machine only: set OMLX_CACHE_STATUS_TOKEN"
        yield refusal(403, text)
    if token is None and not is_safe_host(host):
        text = f"Host was expected to be an address or localhost; got {host[:_SHOWN]!r}"
        yield refusal(403, text)
    # From a page of another origin; following a link to our page is no such request.
    follows_link = is_page and said.get("sec-fetch-mode") == "navigate"
    if said.get("sec-fetch-site", "none") not in ("none", "same-origin") and not follows_link:
        yield refusal(403, "another page's requests are not answered (Sec-Fetch-Site)")
    origin = said.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.strip().lower():
        yield refusal(403, f"requests of {origin[:_SHOWN]!r} are not answered (Origin)")
    given = said.get("authorization", "")
    if token is not None and not is_page and not token_matches(given, token):
        yield refusal(
            401,
            "a token was expected, as Authorization: Bearer TOKEN, and "
            f"{'another one' if given else 'none'} came; it is the one of "
            "OMLX_CACHE_STATUS_TOKEN, or in the service's status_token_file; in a browser open "
            "/status#token=TOKEN",
            WWW_Authenticate='Bearer realm="omlx-cache"',
        )


def token_matches(authorization: str, token: str) -> bool:
    """Take as long for every wrong token."""
    scheme, _, given = authorization.strip().partition(" ")
    # Digests are of one length: a comparison of texts would tell that of the token.
    digests = (
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
        for text in (given.strip(), token)
    )
    return hmac.compare_digest(*digests) and scheme.lower() == "bearer"


def is_loopback(address: str) -> bool:
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found is not None and found.is_loopback


def is_safe_host(host: str) -> bool:
    """Tell whether a `Host` header names an address or this machine. The owner of any other name
    may point it at this machine, so that a page of that owner could read the status."""
    try:
        parts = urlsplit(f"//{host.strip()}")
        is_plain = parts.netloc == host.strip() and "@" not in host and (parts.port or 0) >= 0
    except ValueError:
        return False
    name = (parts.hostname or "").removesuffix(".")
    is_local = name == "localhost" or name.endswith(".localhost")
    return is_plain and (is_local or _address(name) is not None)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
