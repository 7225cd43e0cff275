"""The status port's view of a machine: every process of this user, and the service itself."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from operator import attrgetter
from typing import Any

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import ExplainedRequest, Identity, ProcessRow
from omlx_cache.control.serialization import extended
from omlx_cache.status.history import ProcessStatus
from omlx_cache.status.routes import Operations
from omlx_cache_daemon.client import Client, as_answer, as_map, count_of
from omlx_cache_daemon.log_follower import Events, Row
from omlx_cache_daemon.stores import StoreQuestion, StoreReply, known
from omlx_cache_storage.events import OTHER_PROCESS
from omlx_cache_storage.stats import Stats

ASK_SECONDS = 1.0
REMEMBERED = 10_000
_NOBODY = os.curdir
LATE = f"it did not answer within {ASK_SECONDS:g} s"


class Peers:
    """Finds processes and asks them: all at once, none for longer than a second. One that does not
    answer is asked again aside, and no request waits for it meanwhile. Any thread may call; `_lock`
    guards `_away`, what each such process is shown with and how it is asked aside; no I/O happens
    under it."""

    def __init__(self, find: Callable[[], Sequence[Client]] | None = None) -> None:
        self._find = find or known
        self._lock = threading.Lock()
        self._away: dict[str, tuple[StoreReply, StoreQuestion]] = {}

    def ask(self, question: Callable[[Client], Any], *, is_work: bool = False) -> list[StoreReply]:
        """Put a question to every process, and return the replies in the order of their ids, except
        of processes that do not listen on their sockets. A process whose answer `is_work` may be
        late without being hung."""
        stores = {str(store.path): store for store in self._find()}
        with self._lock:
            for path, (reply, aside) in list(self._away.items()):
                back = aside.ask([reply.store], 0.0)
                if path not in stores or any(not one.error or one.has_gone for one in back):
                    del self._away[path]
            late = {path: reply for path, (reply, _) in self._away.items()}
        here = [store for path, store in stores.items() if path not in late]
        replies = {str(store.path): StoreReply(store, None, LATE) for store in here}
        for reply in StoreQuestion(question, ASK_SECONDS).ask(here, ASK_SECONDS):
            replies[str(reply.store.path)] = reply
        shown = [reply for reply in (replies | late).values() if not reply.has_gone]
        for reply in shown:
            path = str(reply.store.path)
            if reply.error is not None and path not in late and not is_work:
                aside = StoreQuestion(lambda client: client.call("ps"), ASK_SECONDS)
                aside.ask([reply.store], 0.0)
                with self._lock:
                    self._away[path] = reply._replace(answer=None), aside
        return sorted(shown, key=lambda reply: reply.store.pid or 0)


class MachineStatus:
    """The operations of the status port, over the sockets of all processes and the service's own.

    Any thread may call; nothing waits for longer than `ASK_SECONDS`, and for events one waits for
    the other. A process that does not answer is shown with its error and with its last description,
    which is in `_told`. Each process numbers its events, and so does this; `_lock` guards the
    fields about them.
    """

    def __init__(self, own: Operations, peers: Peers | None = None) -> None:
        self._own = own
        self._peers = peers or Peers()
        self._told: dict[str, ProcessRow] = {}
        self._lock = threading.Lock()
        self._followers: dict[str, Events] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._count = self._dropped = 0
        self._began = time.time()

    def operations(self) -> Operations:
        names = ("processes", "settings", "recent", "prefixes", "events")
        return {name: getattr(self, name) for name in names}

    def processes(self, args: Mapping[str, object]) -> Sequence[ProcessStatus]:
        own: ProcessRow = self._own["ps"]({})
        shown = [extended(ProcessStatus, own, stats=self._own["stats"]({}))]
        replies = self._peers.ask(self._introduce)
        here = {str(reply.store.path) for reply in replies}
        self._told = {path: one for path, one in list(self._told.items()) if path in here}
        for reply in replies:
            unknown = Identity(pid=reply.store.pid or 0, name="", uptime_s=0.0, models=())
            who = self._told.get(str(reply.store.path), unknown)
            stats = None if reply.error else reply.answer
            shown.append(extended(ProcessStatus, who, stats=stats, error=reply.error))
        return shown

    def _introduce(self, client: Client) -> Stats:
        self._told[str(client.path)] = client.process()
        return as_answer(Stats, client.call("stats"))

    def settings(self, args: Mapping[str, object]) -> Sequence[Mapping[str, Any]]:
        replies = self._peers.ask(lambda client: as_map(client.call("config")))
        answered = [reply.answer for reply in replies if reply.error is None]
        return [self._own["config"]({}), *answered]

    def recent(self, args: Mapping[str, Any]) -> Sequence[ExplainedRequest]:
        replies = self._peers.ask(
            lambda client: as_answer(tuple[ExplainedRequest, ...], client.call("recent", **args))
        )
        rows = [row for reply in replies if reply.error is None for row in reply.answer]
        return sorted(rows, key=attrgetter("asked_at"), reverse=True)[: args["limit"]]

    def prefixes(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """A level of the tree as all processes together have it; the service's own index speaks
        for a directory that no store has open."""
        replies = self._peers.ask(
            lambda client: as_map(client.call("prefixes", **args)), is_work=True
        )
        answered = [reply for reply in replies if reply.error is None]
        levels = [reply.answer for reply in answered]
        rows = [self._told.get(str(reply.store.path)) for reply in answered]
        own: ProcessRow = self._own["ps"]({})
        if own.cold_dir not in {None if row is None else row.cold_dir for row in rows}:
            levels.append(self._own["prefixes"](args))
        return merged(levels, args["limit"])

    def events(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Events of all processes, numbered anew in the order in which they were gathered."""
        if args.get("kv"):
            text = "kv=1 is answered by each store's own port: a router follows one store"
            raise ControlError("bad_request", text)
        with self._lock:
            own = self._news_of(_NOBODY, lambda op, **args: self._own[op](args), os.getpid())
            replies = self._peers.ask(
                lambda client: self._news_of(str(client.path), client.call, client.pid)
            )
            # Others have ended.
            here = {str(reply.store.path): reply.answer for reply in replies if not reply.error}
            kept = {_NOBODY, *(str(reply.store.path) for reply in replies)}
            self._followers = {path: one for path, one in self._followers.items() if path in kept}
            for path, (follower, rows) in {_NOBODY: own, **here}.items():
                self._followers[path] = follower
                for document in (row.document for row in rows):
                    self._dropped += count_of(document, "missed")
                    # A peer process tells its own events; a document without `detail` is no
                    # event.
                    if document.get("detail", OTHER_PROCESS) != OTHER_PROCESS:
                        self._count += 1
                        self._events.append({**document, "number": self._count})
            return self._sequence(args.get("after"), args["limit"])

    def _news_of(
        self, path: str, ask: Callable[..., object], pid: int | None
    ) -> tuple[Events, list[Row]]:
        """An answer that comes too late changes nothing: the follower of a process from now on is
        returned with its events since the last time."""
        follower = deepcopy(self._followers.get(path) or Events())
        return follower, list(follower.news(ask, pid))

    def _sequence(self, after: int | None, limit: int) -> Mapping[str, Any]:
        """Return the oldest `limit` events beyond a number, or the latest ones without it."""
        news = [event for event in self._events if event["number"] > (after or 0)]
        forgotten = self._count - len(self._events) - (after or 0)
        chosen = news[-limit:] if after is None else news[:limit]
        return {
            "events": chosen,
            "upto": chosen[-1]["number"] if chosen else max(after or 0, self._count),
            "dropped": self._dropped + (0 if after is None else max(0, forgotten)),
            "began": self._began,
        }


Level = Mapping[str, Any]


def merged(levels: Sequence[Level], limit: int) -> Level:
    """Return one level of the tree of prefixes of the shape that each process gives. Memory is each
    process's own, and counts together; a directory is theirs in common, and counts once."""
    if not levels:
        return {"namespace": None, "parent": None, "rows": [], "more": 0, "found": False}
    rows: dict[str, Level] = {}
    for row in (row for level in levels for row in level["rows"]):
        name = row.get("key") or row["namespace"]
        rows[name] = _both(rows[name], row) if name in rows else row
    latest = sorted(rows.values(), key=lambda row: -(row["used_at"] or 0))
    more = max(level["more"] for level in levels) + max(0, len(latest) - limit)
    found = {"found": any(level["found"] for level in levels)} if "found" in levels[0] else {}
    return {**levels[0], "rows": latest[:limit], "more": more, **found}


def _both(one: Level, other: Level) -> Level:
    known = {name: value for name, value in one.items() if value is not None}
    counted = ("roots", "prefixes", "blocks", "children", "used_at")
    most = {name: max(one[name] or 0, other[name] or 0) for name in counted if name in one}
    mine, theirs = one["tiers"], other["tiers"]
    tiers = {
        "hot": {name: count + theirs["hot"][name] for name, count in mine["hot"].items()},
        "cold": {name: max(count, theirs["cold"][name]) for name, count in mine["cold"].items()},
    }
    return {**other, **known, **most, "tiers": tiers}
