"""Every path and the function that answers it: plain functions of operations and a request, for any
server.

/metrics                Prometheus' text, or OpenMetrics
/                       leads to the page
/status                 the page
/status/overview.json   processes with their stats, and how it was before
/status/settings.json   settings with their origins
/status/requests.json   ?limit=
/status/prefixes.json   ?namespace= &parent= &limit= &text=1
/status/events.json     ?after= &limit= &kv=1 (as a prefix-aware router has them)
/lookup                 ?namespace= &keys= (with commas between) or ?model=: what could be restored
/status/events          ?after= &kv=1, as Server-Sent Events
/store/OPERATION        what commands ask, on the Unix socket only

A list in a query has commas between its items; a POST has a map of JSON as its body.

The page is one file with nothing from elsewhere; a policy holds it to that.
"""

import json
import logging
import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from hashlib import sha256
from importlib import resources
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from omlx_cache.control.errors import CHANGES, STATUS_OF, STORE, ControlError
from omlx_cache.control.serialization import encoded
from omlx_cache.package import VERSION
from omlx_cache.status.answer import EVENTS, JSON, MOST_STREAMS, Answer, refusal, refused, stream
from omlx_cache.status.history import SAMPLE_SECONDS, StatusHistory

_INLINE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL | re.IGNORECASE)


@cache
def status_page() -> Answer:
    """Return the page, read once. Its own scripts and styles run, by their hashes, and no
    others."""
    text = resources.files("omlx_cache.status").joinpath("page.html").read_text("utf-8")
    sources: dict[str, list[str]] = {"script": [], "style": []}
    for kind, inside in _INLINE.findall(text):
        digest = b64encode(sha256(inside.encode()).digest()).decode()
        sources[kind.lower()].append(f"'sha256-{digest}'")
    policy = "; ".join(
        (
            "default-src 'none'",
            *(f"{kind}-src {' '.join(found)}" for kind, found in sources.items() if found),
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    headers = {"Content-Security-Policy": policy}
    return Answer(200, "text/html; charset=utf-8", text.encode(), headers)


_log = logging.getLogger(__name__)

Arguments = Mapping[str, Any]
"""Parameters by name, each of the kind that `_READ` says."""
Operation = Callable[[Arguments], Any]
Operations = Mapping[str, Operation]
"""A process's operations, by name. Any thread may call; each returns plain values, and raises
ControlError for a request that it rejects. Operations of the status port:

processes   each process: `pid`, `name`, `title`, `role` (`store` or `service`), `version`,
            `uptime_s`, `models`, `service`, `cold_dir`, `stats` (as `Stats.to_dict`), `error`
            (None, or why it does not answer)
settings    each process's settings with their origins
recent      the latest requests, newest first, each with its `pid` and its `why`
prefixes    a level of the tree of cached prefixes
events      events beyond a number, `upto` for the next question, and `dropped`
lookup      how much of a chain can be restored, of one store
"""

PAGE: Final = "/status"
LOOKUP: Final = "/lookup"
USUAL: Final = 100
LONGEST_SECONDS: Final = 3600.0
_SHOWN = 100


class Routes:
    """The paths over a process's operations, for a server's lifetime. With `samples` a thread of
    its own takes samples for the page's history, until `close`."""

    def __init__(
        self,
        operations: Operations,
        token: str | None = None,
        *,
        samples: bool = False,
    ) -> None:
        self._operations, self._token = operations, token
        self.ending = threading.Event()
        self.places = threading.BoundedSemaphore(MOST_STREAMS)
        self.history = StatusHistory(partial(self.ask, "processes", {}))
        self._sampling = threading.Thread(
            target=self._sample, name="omlx-cache-status-history", daemon=True
        )
        if samples:
            self._sampling.start()

    def ask(self, name: str, values: Mapping[str, object]) -> Any:
        """Raises the operation's exceptions, and ControlError for an unknown operation."""
        operation = self._operations.get(name)
        if operation is None:
            raise ControlError("not_found", f"{name} is answered by each store for itself")
        return operation(values)

    def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        peer: str | None,
        body: bytes = b"",
    ) -> Answer:
        """Raises nothing, and waits as long as the operation does.

        `peer` is None for this user, who gets everything. Any other peer sees the status only.
        Without a token the peer must be this machine and the `Host` an address or a name of it.
        With one it must be in `Authorization`, but for the page itself, which has no one's data.
        """
        path = asked_path(target)
        if peer is not None:
            no = refused(headers, peer, self._token, is_page=path in ("/", PAGE))
            if no is not None:
                return no
        route = ROUTES.get(path)
        if route is None or (route.is_own and peer is not None):
            shown = ", ".join(name for name, one in ROUTES.items() if not one.is_own)
            return refusal(404, f"there is nothing at {path[:_SHOWN]!r}; there is {shown}")
        if method not in route.methods:
            allowed = ", ".join(route.methods)
            return refusal(405, f"{path} takes {allowed}, not {method[:20]}", Allow=allowed)
        try:
            values = _values(target.partition("#")[0].partition("?")[2], body, route.parameters)
            return route.respond(self, values, headers)
        except ControlError as error:
            return refusal(STATUS_OF.get(error.code, 500), str(error))
        except Exception as error:
            _log.warning("%s failed", path, exc_info=True)
            return refusal(500, f"{type(error).__name__}: {error}")

    def refused(self, headers: Mapping[str, str], peer: str) -> Answer | None:
        return refused(headers, peer, self._token, is_page=False)

    def close(self, timeout: float = 0.0) -> None:
        """End the streams and the sampling; waits at most `timeout` seconds for the latter."""
        self.ending.set()
        if self._sampling.ident is not None:
            self._sampling.join(timeout)

    def _sample(self) -> None:
        while not self.ending.is_set():
            try:
                self.history.sample(time.time())
            except Exception:
                _log.debug("status: no sample", exc_info=True)
            self.ending.wait(SAMPLE_SECONDS)


def asked_path(target: str) -> str:
    return target.partition("#")[0].partition("?")[0].rstrip("/") or "/"


def is_status_path(target: str) -> bool:
    """Tell whether a target belongs to the status paths, whether there is one or not."""
    path = asked_path(target)
    return path in ("/", "/metrics", PAGE, LOOKUP) or path.startswith(f"{PAGE}/")


class Route(NamedTuple):
    """The function that answers a path (of the routes, parameters as values, and headers), the
    parameters that it takes, and how and of whom."""

    respond: Callable[[Routes, Arguments, Mapping[str, str]], Answer]
    parameters: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("GET", "HEAD")
    is_own: bool = False


def _whole(value: object, least: int = 0) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"a whole number, {least} or more")
    return value


def _switch(value: object) -> bool:
    if not isinstance(value, bool) and value not in ("0", "1"):
        raise ValueError("0 or 1, in JSON true or false")
    return value in ("1", True)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError("a positive number of seconds")
    return float(min(value, LONGEST_SECONDS))


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError("a list")
    return value


def _items(value: object) -> list[object]:
    return list(value.split(",")) if isinstance(value, str) else _list(value)


def _wholes(value: object) -> list[int]:
    return [_whole(item) for item in _items(value) if item]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


_READ: Final[Mapping[str, Callable[[object], object]]] = {
    "after": _whole,
    "before_ns": _whole,
    "dry_run": _switch,
    "keep": _list,
    "keys": _items,
    "kinds": _items,
    "kv": _switch,
    "last": partial(_whole, least=1),
    "limit": partial(_whole, least=1),
    "number": _whole,
    "open": _wholes,
    "text": _switch,
    "timeout": _seconds,
    "to_bytes": _whole,
}
"""How parameters are read, from a query or from JSON; the others are texts."""


def _values(query: str, body: bytes, known: Sequence[str]) -> dict[str, object]:
    """Raises ControlError for a parameter that is not known, comes twice, or is nothing of its
    kind."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=16)
    except ValueError:
        raise ControlError("bad_request", "the query has more than 16 parameters") from None
    try:
        sent = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise ControlError("bad_request", f"the body is no JSON: {error!s:.200}") from None
    if not isinstance(sent, dict):
        raise ControlError("bad_request", "the body must be a map")
    names = [*(name for name, _ in pairs), *sent]
    if "token" in names:
        text = "a token never belongs into a query: send Authorization: Bearer TOKEN"
        raise ControlError("bad_request", text)
    for name in names:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ControlError("bad_request", f"unknown parameter {name[:_SHOWN]!r}; {takes}")
        if names.count(name) > 1:
            raise ControlError("bad_request", f"the parameter {name} came twice")
    return {name: _read(name, value) for name, value in [*pairs, *sent.items()]}


def _read(name: str, value: object) -> object:
    try:
        return _READ.get(name, _text)(value)
    except ValueError as error:
        raise ControlError("bad_request", f"{name} must be {error}; got {value!r:.100}") from None


def _operation(
    name: str, routes: Routes, values: Arguments, headers: Mapping[str, str], **usual: object
) -> Answer:
    return Answer(200, JSON, encoded(routes.ask(name, {**usual, **values})))


def _metrics(routes: Routes, values: Arguments, headers: Mapping[str, str]) -> Answer:
    from omlx_cache.status.exposition import exposition

    return exposition(routes.ask("processes", {}), headers.get("Accept", ""))


def _overview(routes: Routes, values: Arguments, headers: Mapping[str, str]) -> Answer:
    document = {
        "at": time.time(),
        "version": VERSION,
        "processes": routes.ask("processes", {}),
        "history": routes.history.rows(),
    }
    return Answer(200, JSON, encoded(document))


def _stream(routes: Routes, values: Arguments, headers: Mapping[str, str]) -> Answer:
    after = values.get("after")
    with suppress(ValueError):
        # A browser that was cut off sends it, and asks for the same address as before.
        after = _whole(headers.get("Last-Event-ID"))
    if routes.ending.is_set() or not routes.places.acquire(blocking=False):
        text = f"{MOST_STREAMS} streams are open, and there can be no more; ask /status/events.json"
        return refusal(503, text, Retry_After="5")
    asked = {"kv": values.get("kv", False), "after": after}
    pieces = stream(partial(routes.ask, "events"), asked, routes.ending)
    return Answer(200, EVENTS, b"", stream=pieces, release=routes.places.release)


_LEVEL = ("namespace", "parent", "limit", "text")
_CHAIN = ("namespace", "keys", "model")
_OWN: Final[Mapping[str, tuple[str, ...]]] = {
    "ping": (),
    "stats": (),
    "ps": (),
    "config": (),
    "ls": ("namespace", "limit"),
    "requests": ("after", "open", "limit"),
    "events": ("after", "limit", "kinds", "kv"),
    "inspect": ("key_prefix", "limit"),
    "compare": (),
    "flush": ("timeout",),
    "clear": ("namespace", "timeout"),
    "why": ("last", "number"),
    "prune": ("keep", "before_ns", "to_bytes", "dry_run", "timeout"),
    "recent": ("limit",),
    "prefixes": _LEVEL,
    "lookup": _CHAIN,
}
ROUTES: Final[Mapping[str, Route]] = {
    "/metrics": Route(_metrics),
    PAGE: Route(lambda *asked: status_page()),
    "/status/overview.json": Route(_overview),
    "/status/settings.json": Route(partial(_operation, "settings")),
    "/status/requests.json": Route(partial(_operation, "recent", limit=USUAL), ("limit",)),
    "/status/prefixes.json": Route(partial(_operation, "prefixes", limit=USUAL), _LEVEL),
    "/status/events.json": Route(
        partial(_operation, "events", limit=USUAL), ("after", "limit", "kv")
    ),
    LOOKUP: Route(partial(_operation, "lookup"), _CHAIN),
    "/status/events": Route(_stream, ("after", "kv")),
    "/": Route(lambda *asked: refusal(302, f"the page is {PAGE}", Location=PAGE)),
    **{
        f"{STORE}{name}": Route(
            partial(_operation, name),
            parameters,
            ("POST",) if name in CHANGES else ("GET", "HEAD", "POST"),
            is_own=True,
        )
        for name, parameters in _OWN.items()
    },
}
