"""What the status port shows of a machine: every process of this user, and the service itself."""

import os
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import Identity, ProcessRow
from omlx_cache.status.process import ProcessStatus
from omlx_cache.status.routes import Operation, Operations
from omlx_cache_daemon.replies import as_answer, as_map, as_maps
from omlx_cache_daemon.service.gathered import Gathered
from omlx_cache_daemon.service.levels import merged
from omlx_cache_daemon.service.peers import Ask, Peer, PeerReply, Peers, Question
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

    def processes(self, args: Mapping[str, object]) -> Sequence[ProcessStatus]:
        own: ProcessRow = self._own["ps"]({})
        itself = ProcessStatus.of(own, own.cold_dir, self._own["stats"]({}))
        return [itself, *map(_process, self._peers.ask(_introduce))]

    def settings(self, args: Mapping[str, object]) -> Sequence[Mapping[str, Any]]:
        replies = self._answered(lambda _, ask: as_map(ask("config", {})))
        return [self._own["config"]({}), *(reply.answer for reply in replies)]

    def recent(self, args: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        replies = self._answered(lambda _, ask: as_maps(ask("recent", args)))
        rows = [row for reply in replies for row in reply.answer]
        return sorted(rows, key=itemgetter("asked_at"), reverse=True)[: args["limit"]]

    def prefixes(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """A level of the tree as all processes together have it; the service's own index speaks
        for a directory that no store has open."""
        replies = self._answered(lambda _, ask: as_map(ask("prefixes", args)), is_work=True)
        levels = [reply.answer for reply in replies]
        own: ProcessRow = self._own["ps"]({})
        known = [reply.peer.told for reply in replies]
        if not any(told is not None and told.cold_dir == own.cold_dir for told in known):
            levels.append(self._own["prefixes"](args))
        return merged(levels, args["limit"])

    def events(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
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

    def _answered(self, question: Question, *, is_work: bool = False) -> list[PeerReply]:
        """Return the replies of those who answer."""
        replies = self._peers.ask(question, is_work=is_work)
        return [reply for reply in replies if reply.answer is not None]


def _introduce(peer: Peer, ask: Ask) -> Stats:
    """Ask a process for its figures, and now and then for what hardly changes as well."""
    if peer.told is None or time.monotonic() - peer.told_at > TOLD_SECONDS:
        peer.told = as_answer(ProcessRow, ask("ps", {}))
        peer.told_at = time.monotonic()
    return as_answer(Stats, ask("stats", {}))


def _process(reply: PeerReply) -> ProcessStatus:
    told = reply.peer.told
    known = told or Identity(pid=_pid(reply.peer), name="", uptime_s=0.0, models=())
    stats = reply.answer if isinstance(reply.answer, Stats) else None
    return ProcessStatus.of(known, told.cold_dir if told else None, stats, reply.error)


def _pid(peer: Peer) -> int:
    return peer.told.pid if peer.told is not None else peer.store.pid or 0
