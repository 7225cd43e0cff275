"""The other processes of a machine, asked over their sockets: all at once, none for longer than a
second, and one that hangs not again and again."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import ProcessRow
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_daemon.stores import RunningStore, known

ASK_SECONDS = 1.0
PARALLEL = 16
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""For so long a process that did not answer is left alone, at first and at most."""

Ask = Callable[[str, Mapping[str, object]], object]
"""Asks one process for an operation; raises NobodyThere, ControlError."""


@dataclass
class Peer:
    """A process that was found. `error`: why it did not answer the last time, None if it did;
    `pause` and `not_before`: how long it is left alone, and until when; `told`: what it said of
    itself at `told_at`; `asking`: a question that nobody waits for any more."""

    store: RunningStore
    error: str | None = None
    pause: float = 0.0
    not_before: float = 0.0
    told: ProcessRow | None = None
    told_at: float = 0.0
    asking: "Future[object] | None" = None

    @property
    def is_hung(self) -> bool:
        return self.pause > 0


@dataclass(frozen=True, slots=True)
class PeerReply:
    """What a process answered; None, with an error, for one that did not."""

    peer: Peer
    answer: Any
    error: str | None = None


Question = Callable[[Peer, Ask], object]
"""Asks one process for something, by whatever operations; raises as `Ask`, and CommandError."""


class Peers:
    """Finds processes and asks them. Any thread may call; `_lock` guards `_peers` and what each of
    them has, and is held over no I/O."""

    def __init__(self, find: Callable[[], Sequence[RunningStore]] | None = None) -> None:
        self._find = find or (lambda: list(known()))
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="omlx-cached-ask")

    def ask(self, question: Question, *, is_work: bool = False) -> list[PeerReply]:
        """Put a question to every process, and return the replies in the order of their ids;
        waits for `ASK_SECONDS` at most.

        Of one that hangs only its last error is told; it is asked beside that, now and then. One
        on whose socket nobody listens is left out. Whoever is late with an answer that `is_work`
        need not hang.
        """
        now, deadline = time.monotonic(), time.monotonic() + ASK_SECONDS
        asked: dict[Future[object], Peer] = {}
        replies = []
        for peer in self._found():
            with self._lock:
                is_hung, due = peer.is_hung, now >= peer.not_before and peer.asking is None
                error = peer.error
            if is_hung:
                replies.append(PeerReply(peer, None, error))
                if due:
                    self._ask_aside(peer)
                continue
            asked[self._pool.submit(self._put, peer, question, deadline)] = peer
        wait(asked, max(0.0, deadline - time.monotonic()) + 0.1)
        for future, peer in asked.items():
            reply = self._reply(peer, future, _late if is_work else self._hangs)
            if reply is not None:
                replies.append(reply)
        return sorted(replies, key=lambda reply: reply.peer.store.pid or 0)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _found(self) -> list[Peer]:
        stores = {str(store.path): store for store in self._find()}
        with self._lock:
            self._peers = {
                path: self._peers.get(path) or Peer(store) for path, store in stores.items()
            }
            return list(self._peers.values())

    def _put(self, peer: Peer, question: Question, deadline: float) -> object:
        def ask(operation: str, arguments: Mapping[str, object]) -> object:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NobodyThere(_late(peer))
            return Client(peer.store.path, left).call(operation, **arguments)

        return question(peer, ask)

    def _reply(
        self, peer: Peer, future: "Future[object]", late: Callable[[Peer], str]
    ) -> PeerReply | None:
        if not future.done():
            return PeerReply(peer, None, late(peer))
        try:
            answer = future.result()
        except NobodyThere as error:
            if isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError):
                return None
            if error.__cause__ is not None:
                # It is about to end, or to be one that refuses.
                return PeerReply(peer, None, str(error))
            return PeerReply(peer, None, late(peer))
        except (ControlError, CommandError) as error:
            return PeerReply(peer, None, str(error))
        with self._lock:
            peer.error, peer.pause = None, 0.0
        return PeerReply(peer, answer)

    def _hangs(self, peer: Peer) -> str:
        """Leave a process alone for a while, each time for longer; return what to say of it."""
        with self._lock:
            peer.pause = min(max(FIRST_PAUSE, 2 * peer.pause), LONGEST_PAUSE)
            peer.not_before = time.monotonic() + peer.pause
            peer.error = _late(peer)
            return peer.error

    def _ask_aside(self, peer: Peer) -> None:
        """Ask a process whether it is back, and wait for nothing."""
        future = self._pool.submit(
            self._put, peer, lambda _, ask: ask("ping", {}), time.monotonic() + ASK_SECONDS
        )
        with self._lock:
            peer.asking = future
        future.add_done_callback(lambda done: self._came_back(peer, done))

    def _came_back(self, peer: Peer, future: "Future[object]") -> None:
        with self._lock:
            peer.asking = None
        if future.cancelled():
            return
        if future.exception() is not None:
            self._hangs(peer)
            return
        with self._lock:
            peer.error, peer.pause = None, 0.0


def _late(peer: Peer) -> str:
    return f"it did not answer within {ASK_SECONDS:g} s"
