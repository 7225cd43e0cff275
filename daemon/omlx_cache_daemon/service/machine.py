"""What the status port shows of a machine: every process of this user, and the service itself."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from omlx_cache.control.errors import ControlError
from omlx_cache.status.documents import Document
from omlx_cache.status.routes import Operation, Operations
from omlx_cache_daemon.replies import directory_of
from omlx_cache_daemon.service.gathered import Gathered
from omlx_cache_daemon.service.levels import merged
from omlx_cache_daemon.service.peers import Ask, Peer, Peers, Reply
from omlx_cache_daemon.titles import title

_log = logging.getLogger(__name__)

TOLD_SECONDS = 30.0
"""So old may be what is shown of a process's models."""
MOST_ASKED = 1000
"""Events of one process at a time."""


class MachineStatus:
    """The operations of the status port, over the sockets of all processes and the service's own.

    Any thread may call; nothing waits for longer than `ASK_SECONDS`. A process that does not answer
    is shown with its error and with what it said of itself last.
    """

    def __init__(self, own: Operations, peers: Peers | None = None) -> None:
        self._own = own
        self._peers = peers or Peers()
        self._events = Gathered()

    def operations(self) -> Operations:
        """Return the operations by name."""
        every: Sequence[Operation] = (
            self.processes,
            self.settings,
            self.recent,
            self.prefixes,
            self.events,
        )
        return {operation.__name__: operation for operation in every}

    def processes(self, args: Mapping[str, object]) -> Sequence[Document]:
        return [self._itself(), *map(_process, self._peers.ask(_introduce))]

    def settings(self, args: Mapping[str, object]) -> Sequence[Document]:
        replies = self._peers.ask(lambda _, ask: ask("config", {}))
        known = [self._ask_own("config", {}), *(reply.answer for reply in replies)]
        return [{**one, "title": title(one)} for one in known if isinstance(one, dict)]

    def recent(self, args: Mapping[str, Any]) -> Sequence[Document]:
        rows = []
        for reply in self._peers.ask(lambda _, ask: ask("recent", args)):
            rows += reply.answer if isinstance(reply.answer, list) else []
        return sorted(rows, key=lambda row: -_number(row.get("asked_at")))[: args["limit"]]

    def prefixes(self, args: Mapping[str, Any]) -> Document:
        """A level of the tree as all processes together have it; the service's own index speaks
        for a directory that no store has open."""
        replies = self._peers.ask(lambda _, ask: ask("prefixes", args), is_work=True)
        levels = [reply.answer for reply in replies]
        if not any(self._shares(reply.peer) for reply in replies if reply.answer is not None):
            levels.append(self._ask_own("prefixes", args))
        found = [level for level in levels if isinstance(level, dict)]
        why = [level for level in levels if isinstance(level, str)]
        level = merged(found, args["limit"])
        return {**level, **({"error": why[0]} if why and not found else {})}

    def events(self, args: Mapping[str, Any]) -> Document:
        """Events of all processes, numbered anew in the order in which they were gathered."""
        if args.get("kv"):
            text = "kv=1 is answered by each store's own port: a router follows one store"
            raise ControlError("bad_request", text)
        cursors = self._events.cursors()

        def ask_one(peer: Peer, ask: Ask) -> object:
            return ask("events", {"after": cursors.get(str(peer.store.path)), "limit": MOST_ASKED})

        asked = {"after": cursors.get(""), "limit": MOST_ASKED}
        self._events.add("", None, self._ask_own("events", asked))
        replies = self._peers.ask(ask_one)
        for reply in replies:
            self._events.add(str(reply.peer.store.path), _pid(reply.peer), reply.answer)
        self._events.keep({"", *(str(reply.peer.store.path) for reply in replies)})
        return self._events.document(args.get("after"), args["limit"])

    def close(self) -> None:
        self._peers.close()

    def _itself(self) -> Document:
        known, stats, ps = (self._ask_own(name, {}) for name in ("ping", "stats", "ps"))
        told = {**_map(ps), **_map(known)}
        return {**_described(told), "stats": stats if isinstance(stats, dict) else None}

    def _shares(self, peer: Peer) -> bool:
        """True for a store that has the service's directory open."""
        return directory_of(peer.told) == directory_of(_map(self._ask_own("ps", {})))

    def _ask_own(self, name: str, args: Mapping[str, object]) -> object:
        try:
            return self._own[name](args)
        except ControlError as error:
            return str(error)
        except Exception as error:
            _log.debug("status: %s failed", name, exc_info=True)
            return f"{type(error).__name__}: {error}"


def _introduce(peer: Peer, ask: Ask) -> object:
    """Ask a process for its figures, and now and then for what hardly changes as well."""
    if not peer.told or time.monotonic() - peer.told_at > TOLD_SECONDS:
        peer.told = {**_map(ask("ps", {})), **_map(ask("ping", {}))}
        peer.told_at = time.monotonic()
    return ask("stats", {})


def _process(reply: Reply) -> Document:
    told = {"pid": reply.peer.store.pid, **reply.peer.told}
    stats = reply.answer if isinstance(reply.answer, dict) else None
    up = told.get("uptime_s") if stats is None else stats.get("uptime_seconds")
    return {**_described(told), "uptime_seconds": up, "stats": stats, "error": reply.error}


def _described(told: Mapping[str, object]) -> dict[str, object]:
    return {
        "pid": told.get("pid"),
        "name": told.get("name"),
        "title": title(told),
        "role": told.get("role", "store"),
        "version": told.get("version"),
        "uptime_seconds": told.get("uptime_s"),
        "models": told.get("models", []),
        "cold_dir": directory_of(told),
        "error": None,
    }


def _pid(peer: Peer) -> object:
    return peer.told.get("pid", peer.store.pid)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _map(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
