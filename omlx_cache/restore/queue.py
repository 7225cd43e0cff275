"""Whose turn it is to read ahead: first come, first served, within a number of bytes."""

import contextlib
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from omlx_cache import reasons
from omlx_cache.restore.plan import PageFailed
from omlx_cache.restore.reading import Closed, Reading
from omlx_cache.restore.walk import Walk
from omlx_cache_storage.interrupts import done_within, uninterrupted
from omlx_cache_storage.readers import ReaderPool

_log = logging.getLogger(__name__)

READINGS = 2
"""Restores that read ahead at a time: the second reads while the first one's last pages come."""
THREADS = 4
MOST_THREADS = 16
STUCK_SECONDS = 0.5
"""A read that takes longer gets a thread beside its own, so that a file that hangs delays no other
request. `MOST_THREADS` bounds those that hang."""
LOOK_SECONDS = 0.05
"""How often a worker looks whether somebody still wants what it waits for."""
TOGETHER = 3
"""Small pages that one task reads: at a deadline only whole tasks have come."""


class BackgroundReading(Reading):
    """One request's restore while its pages come in on threads; made by any thread.

    The worker that it `is_running` on uses it, until `ended` is set or it is `closed`. `granted`,
    `admitted`, `taken`, `is_running` and `oversize` are the queue's.
    """

    is_ahead, together, in_flight = True, TOGETHER, THREADS

    def __init__(self, queue: "RestoreQueue", walk: Walk, *, asks: bool = True) -> None:
        # From here on the keys are only read, so that every thread may walk.
        if len(walk.chain):
            walk.chain.key(len(walk.chain))
        super().__init__(walk, queue.reads)
        self.granted = 0
        self.admitted = self.taken = self.oversize = self.is_running = self.is_stuck = False
        self.is_planned = False
        self.ended = threading.Event()
        self._began: float | None = None
        self._stopped: float | None = None
        self._queue = queue
        # What other machines have is found out meanwhile, and waited for by the thread that plans.
        point = self.point = self.wanted = walk.find(wait=0.0)
        self._asks = asks and walk.source.asks and point.position < walk.limit
        self._is_hot = not self._asks and not point.bytes_to_read()

    @property
    def seconds(self) -> float:
        """How long it has been reading, or did."""
        now = time.perf_counter()
        return (self._stopped or now) - (self._began or now)

    @property
    def is_runnable(self) -> bool:
        """True when a worker has something to do for it."""
        idle = not (self.is_running or self._is_hot or self.ended.is_set())
        return idle and (self.admitted or not self.is_planned)

    @property
    def is_asking(self) -> bool:
        """True while other machines may still be waited for."""
        return self._asks and not (self.is_planned or self.ended.is_set())

    @property
    def takes_no_turn(self) -> bool:
        """True for what hangs, waits for other machines, or is waited for by its own request: a
        worker of its own runs it, beside those that read in turn."""
        return self.is_stuck or self.taken or self.is_asking

    def needs(self) -> int | None:
        """Return the memory that it takes from when it is admitted; None before it is planned."""
        if self.taken or self.ended.is_set():
            return 0
        return self.nbytes() if self._is_hot or self.is_planned else None

    def admit(self) -> bool:
        """Let it read. One that was all in memory takes hold of that and ends at once: False, and
        nothing held, if a page was evicted since, so that it must be planned like others."""
        if self._is_hot and not self.ended.is_set():
            self._is_hot = self.hold_all()
            if self._is_hot:
                self.ended.set()
        self.admitted = self.ended.is_set() or self.is_planned or self.taken
        return self.admitted

    def run(self) -> None:
        """Plan, or read what is planned; raises nothing."""
        try:
            if not self.is_planned:
                self.point = None if self._asks else self.point
                self.is_planned = self.make_plan()
                if self.is_planned:
                    return
            else:
                self._began = time.perf_counter()
                self._bring_all()
                self._stopped = time.perf_counter()
        except Closed:
            pass
        except Exception as error:
            _log.exception("reading ahead stopped")
            self.walk.failure = f"{reasons.ERROR}:{type(error).__name__}"
        self.ended.set()

    def _bring_all(self) -> None:
        while True:
            try:
                return self.bring()
            except PageFailed as failed:
                self.learn(failed)
                if not self.make_plan():
                    return

    def answers(self, read: Future[Any]) -> bool:
        """Wait for a read for as long as anybody wants it."""
        began = time.monotonic()
        while not done_within(read, LOOK_SECONDS):
            closed = self.closed
            if not self.is_stuck and (closed or time.monotonic() - began >= STUCK_SECONDS):
                self.is_stuck = True
                self._queue.replace_stuck(read)
            if closed:
                return False
        return True

    def close(self) -> None:
        """Read no more and give the memory back; any thread, any number of times."""
        super().close()
        self.ended.set()


class RestoreQueue:
    """Bounds the bytes of all restores that were begun and not yet taken, and reads them in turn.

    Memory is granted in the order of `add`, to those whose size is known; who finds no room starts
    when others are taken or dropped. `reads` has the threads that wait for the disk. Mutable:
    `_waiting` (in order) and `_hung` (one read of each restore that hangs or was given up), guarded
    by `_lock` without I/O; and `lost`, to which finalizers append
    without a lock.
    """

    def __init__(self, limit_bytes: int, *, threads: int = READINGS) -> None:
        self.limit_bytes = limit_bytes
        self.lost: deque[BackgroundReading] = deque()
        self.reads = ReaderPool(THREADS, "omlx-cache-restore-read", most=MOST_THREADS)
        self._readings = threads
        self._pool = ReaderPool(threads, "omlx-cache-restore", most=MOST_THREADS)
        self._lock = threading.Lock()
        self._waiting: list[BackgroundReading] = []
        self._hung: list[Future[Any]] = []
        self._peak = 0
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes granted now."""
        self.settle()
        with self._lock:
            return sum(ahead.granted for ahead in self._waiting)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were ever granted at once."""
        with self._lock:
            return self._peak

    def add(self, ahead: BackgroundReading) -> None:
        """Let a restore begin when its turn comes and there is room; returns at once."""
        self.settle()
        with self._lock:
            if not self._closed:
                self._waiting.append(ahead)
        self.wake()

    def take(self, ahead: BackgroundReading) -> None:
        """Count a restore's bytes no longer: they are the live request's now.

        One that still waits for room begins at once, before all others.
        """
        with self._lock:
            ahead.taken, ahead.granted = True, 0
            if not self._closed:
                self._waiting = [ahead, *(one for one in self._waiting if one is not ahead)]
        self.wake()

    def drop(self, ahead: BackgroundReading) -> None:
        """Give a restore's bytes back, whether it has begun or not; any number of times."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one is not ahead]
        ahead.close()
        self.wake()

    @uninterrupted
    def settle(self) -> None:
        """Give back the bytes of handles that were lost; called by every other operation."""
        while self.lost:
            try:
                ahead = self.lost.popleft()
            except IndexError:
                return
            self.drop(ahead)

    def shutdown(self, timeout: float) -> bool:
        """Drop everything; False when a read is still waiting for the disk after `timeout`."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
        for ahead in waiting:
            self.drop(ahead)
        ended = self._pool.stop(timeout)
        return self.reads.stop(max(0.0, deadline - time.monotonic())) and ended

    def replace_stuck(self, read: Future[Any]) -> None:
        """Have others read, and another worker run, beside a restore whose reads hang, until this
        one of them has ended."""
        with self._lock:
            self._hung.append(read)
        self.wake()

    @uninterrupted
    def wake(self) -> None:
        """Have a worker look for work; to be called again when there was no thread for it."""
        with self._lock:
            self._hung = [read for read in self._hung if not read.done()]
            self.reads.allow(THREADS * (1 + len(self._hung)))
            self._admit()
            if self._closed or not any(ahead.is_runnable for ahead in self._waiting):
                return
            others = sum(ahead.takes_no_turn for ahead in self._waiting)
            self._pool.allow(self._readings + others)
        # Closed meanwhile, or the system has no thread left.
        with contextlib.suppress(RuntimeError):
            self._pool.submit(self._work)

    def _work(self) -> None:
        while (ahead := self._next()) is not None:
            ahead.run()
            with self._lock:
                ahead.is_running = False
            # What it leaves behind may be work for more than this thread.
            self.wake()

    def _next(self) -> BackgroundReading | None:
        """Return the first restore that a worker has something to do for."""
        self.settle()
        with self._lock:
            busy = sum(a.is_running and not a.takes_no_turn for a in self._waiting)
            for ahead in self._waiting:
                if ahead.is_runnable and (ahead.takes_no_turn or busy < self._readings):
                    ahead.is_running = True
                    return ahead
        return None

    def _admit(self) -> None:
        """Grant memory in order, as far as there is room; later ones to those whose size is known,
        as a header may be in a file that hangs."""
        used = sum(ahead.granted for ahead in self._waiting)
        for ahead in list(self._waiting):
            nbytes = None if ahead.admitted else ahead.needs()
            if nbytes is None:
                continue
            if nbytes > self.limit_bytes:
                ahead.oversize = True
                ahead.ended.set()
                self._waiting.remove(ahead)
            elif used + nbytes > self.limit_bytes:
                return
            elif ahead.admit():
                ahead.granted = nbytes
                used += nbytes
                self._peak = max(self._peak, used)
