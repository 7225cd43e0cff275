"""What the status port shows of a machine: every process of this user, and the service itself."""

import os
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from omlx_cache.control.errors import ControlError
from omlx_cache.status.documents import Document
from omlx_cache.status.routes import Operation, Operations
from omlx_cache_daemon.replies import as_answer, as_map, as_maps, directory_of
from omlx_cache_daemon.service.gathered import Gathered
from omlx_cache_daemon.service.levels import merged
from omlx_cache_daemon.service.peers import Ask, Peer, PeerReply, Peers, Question
from omlx_cache_daemon.titles import title
from omlx_cache_storage.stats import Stats

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
        replies = self._answered(lambda _, ask: as_map(ask("config", {})))
        known = [self._own["config"]({}), *(reply.answer for reply in replies)]
        return [{**one, "title": title(one)} for one in known]

    def recent(self, args: Mapping[str, Any]) -> Sequence[Document]:
        replies = self._answered(lambda _, ask: as_maps(ask("recent", args)))
        rows = [row for reply in replies for row in reply.answer]
        return sorted(rows, key=itemgetter("asked_at"), reverse=True)[: args["limit"]]

    def prefixes(self, args: Mapping[str, Any]) -> Document:
        """A level of the tree as all processes together have it; the service's own index speaks
        for a directory that no store has open."""
        replies = self._answered(lambda _, ask: as_map(ask("prefixes", args)), is_work=True)
        levels = [reply.answer for reply in replies]
        own = directory_of(self._own["ps"]({}))
        if not any(directory_of(reply.peer.told) == own for reply in replies):
            levels.append(self._own["prefixes"](args))
        return merged(levels, args["limit"])

    def events(self, args: Mapping[str, Any]) -> Document:
        """Events of all processes, numbered anew in the order in which they were gathered."""
        if args.get("kv"):
            text = "kv=1 is answered by each store's own port: a router follows one store"
            raise ControlError("bad_request", text)
        cursors = self._events.cursors()

        def ask_one(peer: Peer, ask: Ask) -> object:
            after = cursors.get(str(peer.store.path))
            return as_map(ask("events", {"after": after, "limit": MOST_ASKED}))

        own = self._own["events"]({"after": cursors.get(""), "limit": MOST_ASKED})
        self._events.add("", os.getpid(), own)
        replies = self._peers.ask(ask_one)
        for reply in replies:
            if reply.answer is not None:
                self._events.add(str(reply.peer.store.path), _pid(reply.peer), reply.answer)
        self._events.keep({"", *(str(reply.peer.store.path) for reply in replies)})
        return self._events.document(args.get("after"), args["limit"])

    def close(self) -> None:
        self._peers.close()

    def _itself(self) -> Document:
        told = {**self._own["ps"]({}), **self._own["ping"]({})}
        return {**_described(told), "stats": self._own["stats"]({})}

    def _answered(self, question: Question, *, is_work: bool = False) -> list[PeerReply]:
        """Return the replies of those who answer."""
        replies = self._peers.ask(question, is_work=is_work)
        return [reply for reply in replies if reply.answer is not None]


def _introduce(peer: Peer, ask: Ask) -> object:
    """Ask a process for its figures, and now and then for what hardly changes as well."""
    if not peer.told or time.monotonic() - peer.told_at > TOLD_SECONDS:
        peer.told = {**as_map(ask("ps", {})), **as_map(ask("ping", {}))}
        peer.told_at = time.monotonic()
    stats = as_map(ask("stats", {}))
    # Figures of another version are none that could be shown beside those of this one.
    as_answer(Stats, stats)
    return stats


def _process(reply: PeerReply) -> Document:
    told, stats = {"pid": reply.peer.store.pid, **reply.peer.told}, reply.answer
    up = told.get("uptime_s") if stats is None else stats["uptime_seconds"]
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
