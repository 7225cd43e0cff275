"""What the status port shows of a machine: every process of this user, and the service itself.

Processes are asked all at once, none for longer than a second, and one that hangs not again before
it answers a question that nobody waits for.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import Identity, ProcessRow
from omlx_cache.status.process import ProcessStatus
from omlx_cache.status.routes import Operation, Operations
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_daemon.replies import as_answer, as_map, as_maps
from omlx_cache_daemon.stores import RunningStore, known
from omlx_cache_storage.events import OTHER_PROCESS
from omlx_cache_storage.stats import Stats

ASK_SECONDS = 1.0
PARALLEL = 16
TOLD_SECONDS = 30.0
"""So old may be what is shown of a process's models."""
MOST_ASKED = 1000
"""Events of one process at a time."""
REMEMBERED = 10_000
"""Events of all processes."""
LATE = f"it did not answer within {ASK_SECONDS:g} s"

Ask = Callable[[str, Mapping[str, object]], object]
"""Asks one process for an operation; raises NobodyThere, ControlError."""


@dataclass
class Peer:
    """A process that was found. `told` is what it said of itself at `told_at`; `aside` a question
    that nobody waits for, None for a process that does not hang."""

    store: RunningStore
    told: ProcessRow | None = None
    told_at: float = 0.0
    aside: "Future[object] | None" = None

    @property
    def pid(self) -> int:
        return self.store.pid or 0 if self.told is None else self.told.pid


@dataclass(frozen=True, slots=True)
class PeerReply:
    """What a process answered; None, with an error, for one that did not."""

    peer: Peer
    answer: Any
    error: str | None = None


Question = Callable[[Peer, Ask], object]
"""Asks one process for something, by whatever operations; raises as `Ask`, and CommandError."""


class Peers:
    """Finds processes and asks them. Any thread may call; `_lock` guards `_peers` and `aside` of
    each, and is held over no I/O."""

    def __init__(self, find: Callable[[], Sequence[RunningStore]] | None = None) -> None:
        self._find = find or (lambda: list(known()))
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="omlx-cached-ask")

    def ask(self, question: Question, *, is_work: bool = False) -> list[PeerReply]:
        """Put a question to every process, and return the replies in the order of their ids;
        waits for `ASK_SECONDS` at most.

        One that hangs is not waited for. One on whose socket nobody listens is left out. Whoever is
        late with an answer that `is_work` need not hang.
        """
        deadline, found = time.monotonic() + ASK_SECONDS, self._find()
        with self._lock:
            self._peers = {
                str(store.path): self._peers.get(str(store.path)) or Peer(store) for store in found
            }
            peers = list(self._peers.values())
            hung = [peer for peer in peers if self._hangs(peer)]
        replies = [PeerReply(peer, None, LATE) for peer in hung]
        asked = {
            self._pool.submit(_put, peer, question, deadline): peer
            for peer in peers
            if peer not in hung
        }
        wait(asked, max(0.0, deadline - time.monotonic()) + 0.1)
        for future, peer in asked.items():
            reply = _reply(peer, future)
            if reply is not None:
                replies.append(reply)
            if reply is not None and reply.error == LATE and not is_work:
                with self._lock:
                    peer.aside = self._ask_aside(peer)
        return sorted(replies, key=lambda reply: reply.peer.store.pid or 0)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _hangs(self, peer: Peer) -> bool:
        """Tell whether a process that hung does so still; it is asked again aside."""
        if peer.aside is not None and peer.aside.done():
            is_back = peer.aside.exception() is None
            peer.aside = None if is_back else self._ask_aside(peer)
        return peer.aside is not None

    def _ask_aside(self, peer: Peer) -> "Future[object]":
        deadline = time.monotonic() + ASK_SECONDS
        return self._pool.submit(_put, peer, lambda _, ask: ask("ping", {}), deadline)


def _put(peer: Peer, question: Question, deadline: float) -> object:
    def ask(operation: str, arguments: Mapping[str, object]) -> object:
        left = deadline - time.monotonic()
        if left <= 0:
            raise NobodyThere(LATE)
        return Client(peer.store.path, left).call(operation, **arguments)

    return question(peer, ask)


def _reply(peer: Peer, future: "Future[object]") -> PeerReply | None:
    if not future.done():
        return PeerReply(peer, None, LATE)
    error = future.exception()
    if error is None:
        return PeerReply(peer, future.result())
    if isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError):
        return None
    if isinstance(error, NobodyThere) and error.__cause__ is None:
        return PeerReply(peer, None, LATE)
    if isinstance(error, CommandError | ControlError):
        # It is about to end, or one that refuses.
        return PeerReply(peer, None, str(error))
    raise error


class Gathered:
    """Events of several processes as one sequence, a bounded ring: each process numbers its own,
    and so does this. Any thread may call; `_lock` guards everything."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._lock = threading.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=most)
        self._count = 0
        self._dropped = 0
        self._heard: dict[str, tuple[object, int]] = {}
        self._began = time.time()

    def cursors(self) -> dict[str, int]:
        """Return up to which number each process was heard."""
        with self._lock:
            return {source: upto for source, (_, upto) in self._heard.items()}

    def keep(self, sources: Collection[str]) -> None:
        """Forget how far others than these were heard: they have ended."""
        with self._lock:
            self._heard = {name: one for name, one in self._heard.items() if name in sources}

    def add(self, source: str, pid: object, reply: Mapping[str, Any]) -> None:
        """Take what a process answered; what was heard from it already is passed over."""
        with self._lock:
            began, upto = self._heard.get(source, (reply["began"], None))
            if began != reply["began"]:
                # Its numbers begin again: what it was asked for was beyond them.
                del self._heard[source]
            elif upto is None or upto < reply["upto"]:
                self._dropped += 0 if upto is None else reply["dropped"]
                self._heard[source] = began, reply["upto"]
                for event in reply["events"]:
                    # What another process did it tells itself.
                    if event["number"] > (upto or 0) and event["detail"] != OTHER_PROCESS:
                        self._count += 1
                        self._events.append({**event, "number": self._count, "pid": pid})

    def document(self, after: int | None, limit: int) -> Mapping[str, Any]:
        """Return the oldest `limit` events beyond a number, or the latest ones without it."""
        with self._lock:
            news = [event for event in self._events if event["number"] > (after or 0)]
            forgotten = self._count - len(self._events) - (after or 0)
            chosen = news[-limit:] if after is None else news[:limit]
            return {
                "events": chosen,
                "upto": chosen[-1]["number"] if chosen else max(after or 0, self._count),
                "dropped": self._dropped + (0 if after is None else max(0, forgotten)),
                "began": self._began,
            }


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
        shown = [ProcessStatus.of(own, own.cold_dir, self._own["stats"]({}))]
        for reply in self._peers.ask(_introduce):
            told = reply.peer.told
            known = told or Identity(pid=reply.peer.pid, name="", uptime_s=0.0, models=())
            cold_dir = None if told is None else told.cold_dir
            shown.append(ProcessStatus.of(known, cold_dir, reply.answer, reply.error))
        return shown

    def settings(self, args: Mapping[str, object]) -> Sequence[Mapping[str, Any]]:
        replies = self._peers.ask(lambda _, ask: as_map(ask("config", {})))
        answered = [reply.answer for reply in replies if reply.answer is not None]
        return [self._own["config"]({}), *answered]

    def recent(self, args: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        replies = self._peers.ask(lambda _, ask: as_maps(ask("recent", args)))
        rows = [row for reply in replies for row in reply.answer or ()]
        return sorted(rows, key=itemgetter("asked_at"), reverse=True)[: args["limit"]]

    def prefixes(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """A level of the tree as all processes together have it; the service's own index speaks
        for a directory that no store has open."""
        replies = self._peers.ask(lambda _, ask: as_map(ask("prefixes", args)), is_work=True)
        answered = [reply for reply in replies if reply.answer is not None]
        levels = [reply.answer for reply in answered]
        own: ProcessRow = self._own["ps"]({})
        known = [reply.peer.told for reply in answered]
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
                self._events.add(str(reply.peer.store.path), reply.peer.pid, reply.answer)
        self._events.keep({"", *(str(reply.peer.store.path) for reply in replies)})
        return self._events.document(args.get("after"), args["limit"])

    def close(self) -> None:
        self._peers.close()


def _introduce(peer: Peer, ask: Ask) -> Stats:
    """Ask a process for its figures, and now and then for what hardly changes as well."""
    if peer.told is None or time.monotonic() - peer.told_at > TOLD_SECONDS:
        peer.told = as_answer(ProcessRow, ask("ps", {}))
        peer.told_at = time.monotonic()
    return as_answer(Stats, ask("stats", {}))


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
    """Return a prefix that two processes know of."""
    known = {name: value for name, value in one.items() if value is not None}
    counted = ("roots", "prefixes", "blocks", "children", "used_at")
    most = {name: max(one[name] or 0, other[name] or 0) for name in counted if name in one}
    mine, theirs = one["tiers"], other["tiers"]
    tiers = {
        "hot": {name: count + theirs["hot"][name] for name, count in mine["hot"].items()},
        "cold": {name: max(count, theirs["cold"][name]) for name, count in mine["cold"].items()},
    }
    return {**other, **known, **most, "tiers": tiers}
