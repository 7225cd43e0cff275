"""What the status paths answer: plain functions of a source and a request, for any HTTP server.

/metrics                Prometheus' text, or OpenMetrics
/status                 the page
/status/overview.json   processes with their stats, and how it was before
/status/settings.json   settings with their origins
/status/requests.json   ?limit=
/status/prefixes.json   ?namespace= &parent= &limit= &text=1
/status/events.json     ?after= &limit= &kv=1 (as a prefix-aware router has them)
/lookup                 ?namespace= &keys= (with commas between) or ?model=: what could be restored
/status/events          ?after= &kv=1, as Server-Sent Events
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from omlx_cache.package import VERSION
from omlx_cache.status.access import Visit, refused
from omlx_cache.status.answer import EVENTS, JSON, Answer, refusal
from omlx_cache.status.documents import encoded
from omlx_cache.status.exposition import exposition
from omlx_cache.status.history import SAMPLE_SECONDS, StatusHistory
from omlx_cache.status.page import status_page
from omlx_cache.status.source import MOST_KEYS, KvSource, LookupSource, Source
from omlx_cache.status.streams import Ask, Streams

_log = logging.getLogger(__name__)

PAGE = "/status"
LOOKUP = "/lookup"
MOST = 1000
USUAL = 100
_SHOWN = 100


class BadQuery(Exception):
    """A query that cannot be answered, in words for whoever sent it."""


class Asked(NamedTuple):
    """A request that may be answered."""

    source: Source
    query: Mapping[str, str]
    headers: Mapping[str, str]
    streams: Streams | None
    history: StatusHistory | None
    is_get: bool

    def number(self, name: str, usual: int | None, most: int | None = None) -> int | None:
        """Return a parameter as a whole number; raises BadQuery for anything else."""
        text = self.query.get(name)
        if text is None:
            return usual
        is_number = text.isascii() and text.isdigit() and len(text) < 19
        if not is_number or (most is not None and not 1 <= int(text) <= most):
            wanted = "0 or more" if most is None else f"from 1 to {most:,}"
            raise BadQuery(f"{name} must be a whole number, {wanted}; got {text[:_SHOWN]!r}")
        return int(text)

    def limit(self) -> int:
        return self.number("limit", USUAL, MOST) or USUAL

    def switch(self, name: str) -> bool:
        """Return a parameter that is 0 or 1; raises BadQuery for anything else."""
        text = self.query.get(name, "0")
        if text not in ("0", "1"):
            raise BadQuery(f"{name} must be 0 or 1; got {text[:_SHOWN]!r}")
        return text == "1"

    def hexadecimal(self, name: str) -> str | None:
        """Return a parameter of hex digits; raises BadQuery for anything else."""
        text = self.query.get(name)
        if text is not None and not (0 < len(text) <= 128 and _is_hexadecimal(text)):
            raise BadQuery(f"{name} must be 1 to 128 hex digits; got {text[:_SHOWN]!r}")
        return text


def _is_hexadecimal(text: str) -> bool:
    return all(character in "0123456789abcdefABCDEF" for character in text)


class StatusRoutes:
    """The paths over one source, with a token or without, for a server's lifetime.

    A thread of its own takes the samples of the page's history, until `close`.
    """

    def __init__(self, source: Source, token: str | None = None) -> None:
        self.source, self._token = source, token
        self.streams = Streams()
        self.history = StatusHistory(source)
        self._sampling = threading.Thread(
            target=self._sample, name="omlx-cache-status-history", daemon=True
        )
        self._sampling.start()

    def answer(self, method: str, target: str, headers: Mapping[str, str], peer: str) -> Answer:
        """As the function `answer`."""
        return answer(
            self.source,
            method,
            target,
            headers,
            token=self._token,
            peer=peer,
            streams=self.streams,
            history=self.history,
        )

    def refused(self, method: str, headers: Mapping[str, str], peer: str) -> Answer | None:
        """Return why a request for a path of the server's own is refused, None where it is not."""
        return refused(Visit(method, headers, peer, is_page=False), self._token)

    def close(self, timeout: float = 0.0) -> None:
        """End the streams and the sampling; waits at most `timeout` seconds for the latter."""
        self.streams.close()
        self._sampling.join(timeout)

    def _sample(self) -> None:
        while not self.streams.ending.is_set():
            try:
                self.history.sample(time.time())
            except Exception:
                _log.debug("status: no sample", exc_info=True)
            self.streams.ending.wait(SAMPLE_SECONDS)


def is_status_path(target: str) -> bool:
    """Tell whether a request's target belongs to the status paths, whether there is one or not."""
    path = target.partition("?")[0]
    return path in ("/metrics", PAGE, LOOKUP) or path.startswith(f"{PAGE}/")


def answer(
    source: Source,
    method: str,
    target: str,
    headers: Mapping[str, str],
    *,
    token: str | None = None,
    peer: str = "127.0.0.1",
    streams: Streams | None = None,
    history: StatusHistory | None = None,
) -> Answer:
    """Return what a request gets; raises nothing. Reads the source, and waits as long as that does.

    Without a token, `peer` must be this machine and the `Host` an address or a name of it; with one
    it must be in `Authorization`, but for the page itself, which holds nothing of anybody's.
    """
    try:
        parts = urlsplit(target)
    except ValueError:
        return refusal(400, f"the path is not understood: {target[:_SHOWN]!r}")
    path = parts.path if parts.path == "/" else parts.path.rstrip("/")
    visit = Visit(method, headers, peer, is_page=path == PAGE)
    no = refused(visit, token)
    if no is not None:
        return no
    route = _ROUTES.get(path)
    if route is None:
        return refusal(404, f"there is nothing at {path[:_SHOWN]!r}; there is {', '.join(_ROUTES)}")
    if method not in ("GET", "HEAD"):
        return refusal(405, f"{path} takes GET and HEAD, not {method[:20]}", Allow="GET, HEAD")
    try:
        query = _query(parts.query, route.parameters)
        asked = Asked(source, query, visit.headers, streams, history, method == "GET")
        return route.respond(asked)
    except BadQuery as error:
        return refusal(400, f"{path}: {error}")
    except Exception as error:
        _log.warning("status: %s failed", path, exc_info=True)
        return refusal(500, f"{path} cannot be shown: {type(error).__name__}: {error}")


def _query(text: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return a query's parameters; raises BadQuery for one that is not known, or comes twice."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=16)
    except ValueError:
        raise BadQuery("the query has more than 16 parameters") from None
    query = dict(pairs)
    if "token" in query:
        raise BadQuery("a token never belongs into a query: send Authorization: Bearer TOKEN")
    for name in query:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise BadQuery(f"unknown parameter {name[:_SHOWN]!r}; {takes}")
    if len(query) < len(pairs):
        raise BadQuery("a parameter came twice")
    return query


class Route(NamedTuple):
    """What answers a path, and the parameters that it takes."""

    respond: Callable[[Asked], Answer]
    parameters: tuple[str, ...] = ()


def _json(document: object) -> Answer:
    return Answer(200, JSON, encoded(document))


def _metrics(asked: Asked) -> Answer:
    shown = exposition(asked.source.processes(), asked.headers.get("accept", ""))
    return Answer(200, shown.content_type, shown.body, {"Vary": "Accept"})


def _page(asked: Asked) -> Answer:
    page = status_page()
    headers = {"Content-Security-Policy": page.policy}
    return Answer(200, "text/html; charset=utf-8", page.body, headers)


def _overview(asked: Asked) -> Answer:
    document = {
        "at": time.time(),
        "version": VERSION,
        "processes": asked.source.processes(),
        "history": [] if asked.history is None else asked.history.rows(),
    }
    return _json(document)


def _settings(asked: Asked) -> Answer:
    return _json(asked.source.settings())


def _requests(asked: Asked) -> Answer:
    return _json(asked.source.requests(asked.limit()))


def _prefixes(asked: Asked) -> Answer:
    namespace, parent = asked.hexadecimal("namespace"), asked.hexadecimal("parent")
    return _json(asked.source.prefixes(namespace, parent, asked.limit(), text=asked.switch("text")))


def _events(asked: Asked) -> Answer:
    return _json(_shape(asked)(asked.number("after", None), asked.limit()))


def _shape(asked: Asked) -> Ask:
    """Return what gives events, as they are or for a router."""
    if not asked.switch("kv"):
        return asked.source.events
    if not isinstance(asked.source, KvSource):
        raise BadQuery("kv=1 is answered by each store's own port: a router follows one store")
    return asked.source.kv_events


def _lookup(asked: Asked) -> Answer:
    if not isinstance(asked.source, LookupSource):
        raise BadQuery("it is answered by each store's own port: a router asks one store")
    namespace, text = asked.hexadecimal("namespace"), asked.query.get("keys")
    keys = None if text is None else text.split(",")
    if keys is not None and (namespace is None or len(keys) > MOST_KEYS):
        raise BadQuery(f"keys come with a namespace, {MOST_KEYS} of them at most")
    found = asked.source.lookup(namespace, keys, asked.query.get("model"))
    error = found.get("error")
    if isinstance(error, str):
        raise BadQuery(error)
    return _json(found)


def _stream(asked: Asked) -> Answer:
    ask, after = _shape(asked), asked.number("after", None)
    # A browser that was cut off sends it, and asks for the same address as before.
    last = asked.headers.get("last-event-id", "")
    if last.isascii() and last.isdigit() and len(last) < 19:
        after = int(last)
    if not asked.is_get:
        return Answer(200, EVENTS, b"")
    stream = None if asked.streams is None else asked.streams.follow(ask, after)
    if stream is None:
        most = 0 if asked.streams is None else asked.streams.most
        text = f"{most} streams are open, and there can be no more; ask /status/events.json"
        return refusal(503, text, Retry_After="5")
    return Answer(200, EVENTS, b"", stream=stream)


_ROUTES = {
    "/metrics": Route(_metrics),
    PAGE: Route(_page),
    "/status/overview.json": Route(_overview),
    "/status/settings.json": Route(_settings),
    "/status/requests.json": Route(_requests, ("limit",)),
    "/status/prefixes.json": Route(_prefixes, ("namespace", "parent", "limit", "text")),
    "/status/events.json": Route(_events, ("after", "limit", "kv")),
    LOOKUP: Route(_lookup, ("namespace", "keys", "model")),
    "/status/events": Route(_stream, ("after", "kv")),
}
