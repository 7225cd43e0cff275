"""Whose turn it is to read ahead: first come, first served, within a number of bytes."""

import contextlib
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED
from omlx_cache.arrays.mlxio import on_host
from omlx_cache.restore.plan import PageFailed
from omlx_cache.restore.reading import Closed, Reading, Walk
from omlx_cache_storage.calls import done_within, uninterrupted
from omlx_cache_storage.io_threads import Read, ReaderPool

_log = logging.getLogger(__name__)

THREADS = 4
MOST_THREADS = 16
STUCK_SECONDS = 0.5
"""A read without a byte for so long gets a thread beside its own, so that a hanging file delays no
other request. `MOST_THREADS` bounds the reads that hang, and the restores that plan or wait."""
LOOK_SECONDS = 0.05
"""How often a worker looks whether a request still wants the pages that it waits for."""
PART = 32
"""The part of a restore's pages that is read at a time, but two at least, and `THREADS` at most.
Each is twice in memory until it is in its place."""
TOGETHER = 3
"""Small pages that one task reads: at a deadline only whole tasks have come."""


class BackgroundReading(Reading):
    """One request's restore while its pages come in on threads, at its walk's `until` at the
    latest.

    The thread that runs it uses it until `ended` is set or it is `closed`. The other flags are the
    queue's: `needs` is its memory, None before that is known; others wait for that unless it
    `is_slow`. `admitted`: it has the memory; `refused`: it never will; `has_begun`: it had its
    turn.
    """

    is_ahead, together = True, TOGETHER

    def __init__(self, queue: "RestoreQueue", walk: Walk) -> None:
        # From here on the keys are only read, so that every thread may walk.
        if len(walk.chain):
            walk.chain.key(len(walk.chain))
        super().__init__(walk, queue.reads)
        self.needs: int | None = None
        self.admitted = self.refused = self.has_begun = False
        self.ended = threading.Event()
        self._began = self._stopped = 0.0
        self._queue = queue
        self.wanted = found = walk.find(waits=False)
        self.position = found.position
        # Pages of other machines are looked up meanwhile; the thread that plans waits for them.
        self.is_slow = walk.source.asks and found.position < walk.limit
        if not self.is_slow:
            self.point = found
            self.needs = None if found.bytes_to_read() else self.nbytes()

    @property
    def seconds(self) -> float:
        return (self._stopped or time.perf_counter()) - self._began if self._began else 0.0

    def run(self) -> None:
        """Plan, and read the planned pages; raises nothing. Waits for memory and for its turn."""
        try:
            while (plan := self.make_plan()) and self._queue.wait_for_turn(self):
                self._began = self._began or time.perf_counter()
                self.in_flight = min(THREADS, max(2, len(plan.reads) // PART))
                try:
                    self.bring()
                    break
                except PageFailed as failed:
                    self.learn(failed)
        except Closed:
            pass
        except Exception as error:
            _log.exception("reading ahead stopped")
            self.walk.failure = f"{reasons.ERROR}:{type(error).__name__}"
        self._stopped = time.perf_counter()
        self.ended.set()
        self.pass_turn()

    def nbytes(self) -> int:
        assert self.point is not None
        uses = self.point.all_uses
        if self.plan is None or not on_host():
            return sum(use.info.nbytes for use in uses)
        return self.plan.nbytes + sum(u.info.nbytes for u in uses if u.page.group != PAGED.name)

    def hold_all(self) -> bool:
        """Reference all pages of the point, so that none is evicted; False, and none, if one is not
        in memory."""
        assert self.point is not None
        held = self.hold(self.point)
        found = all(use.page in held for use in self.point.all_uses)
        self.arrived = held if found else {}
        return found

    def answers(self, read: Future[Any]) -> bool:
        assert isinstance(read, Read)
        while not done_within(read, min(LOOK_SECONDS, self.walk.left)):
            if not self.walk.left:
                self.closed = True
            if self.closed or (read.running() and read.own.stalls(STUCK_SECONDS)):
                self.is_slow = True
                self._queue.replace_stuck(read)
                self.pass_turn()
            if self.closed:
                return False
        return True

    def pass_turn(self) -> None:
        self._queue.pass_turn(self)


class RestoreQueue:
    """Bounds the bytes of all restores that were begun and not yet taken, and reads them in turn.

    Each is planned by a worker. Memory is reserved in the order of `add`. One reads at a time, and
    the next begins while its last pages come; `reads` has the threads that wait for the disk.
    `_lock`, held over no I/O, guards `_waiting` (in order, admitted ones too), `_reader` (whose
    turn it is) and `_hung` (reads that hang). Finalizers append to `lost` without a lock.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.lost: deque[BackgroundReading] = deque()
        self.reads = ReaderPool(THREADS, "omlx-cache-restore-read", most=MOST_THREADS)
        self._workers = ReaderPool(MOST_THREADS, "omlx-cache-restore")
        self._lock = threading.Condition()
        self._waiting: list[BackgroundReading] = []
        self._reader: BackgroundReading | None = None
        self._hung: list[Future[Any]] = []
        self.peak_bytes = 0
        self._closed = False

    @property
    def nbytes(self) -> int:
        self.settle()
        with self._lock:
            return sum(ahead.needs or 0 for ahead in self._waiting if ahead.admitted)

    def add(self, ahead: BackgroundReading) -> None:
        self.settle()
        with self._lock:
            if self._closed:
                ahead.ended.set()
                return
            self._waiting.append(ahead)
            if ahead.needs is None:
                self._plan(ahead)
            self._admit()

    def take(self, ahead: BackgroundReading) -> bool:
        """Count a restore's bytes no longer: they are the live request's now. False if it was not
        admitted."""
        with self._lock:
            self._leave(ahead)
            return not ahead.refused and (ahead.admitted or ahead.ended.is_set())

    def drop(self, ahead: BackgroundReading) -> None:
        with self._lock:
            # No worker will end it: a caller that waits for it must not wait for ever.
            ahead.ended.set()
            self._leave(ahead)
        ahead.close()

    @uninterrupted
    def settle(self) -> None:
        with contextlib.suppress(IndexError):
            while self.lost:
                self.drop(self.lost.popleft())

    def shutdown(self, timeout: float) -> bool:
        """Drop everything; False when a read still waits for the disk after `timeout`."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
        for ahead in waiting:
            self.drop(ahead)
        ended = self._workers.stop(timeout)
        return self.reads.stop(max(0.0, deadline - time.monotonic())) and ended

    def wait_for_turn(self, ahead: BackgroundReading) -> bool:
        """Block until a planned restore may read; False when no request wants it any more."""
        needs = ahead.nbytes()
        with self._lock:
            if ahead.needs is None:
                ahead.needs = needs
                self._admit()
            self._lock.wait_for(lambda: self._may_read(ahead))
            if ahead in self._waiting and not ahead.has_begun:
                self._reader = ahead
            ahead.has_begun = True
        return not ahead.ended.is_set()

    def pass_turn(self, ahead: BackgroundReading) -> None:
        with self._lock:
            if self._reader is ahead:
                self._reader = None
            self._admit()

    def replace_stuck(self, read: Future[Any]) -> None:
        with self._lock:
            self._hung = [one for one in {*self._hung, read} if not one.done()]
            self.reads.allow(THREADS * (1 + len(self._hung)))

    def _may_read(self, ahead: BackgroundReading) -> bool:
        if ahead.ended.is_set() or ahead.has_begun or ahead not in self._waiting:
            return True
        idle = (one for one in self._waiting if not (one.has_begun or one.ended.is_set()))
        return self._reader is None and next((one for one in idle if one.admitted), None) is ahead

    def _plan(self, ahead: BackgroundReading) -> None:
        try:
            self._workers.submit(ahead.run)
        except RuntimeError:
            # The system has no thread left.
            self._refuse(ahead)

    def _refuse(self, ahead: BackgroundReading) -> None:
        ahead.refused = True
        ahead.ended.set()
        self._waiting.remove(ahead)

    def _leave(self, ahead: BackgroundReading) -> None:
        self._waiting = [one for one in self._waiting if one is not ahead]
        self._admit()

    def _admit(self) -> None:
        """Grant memory in order, as far as there is room, past those whose header hangs. One that
        was all in memory references that and ends at once, or is planned if a page was evicted
        since."""
        used = sum(ahead.needs or 0 for ahead in self._waiting if ahead.admitted)
        for ahead in list(self._waiting):
            if ahead.admitted or ahead.ended.is_set():
                continue
            if ahead.needs is None:
                if not ahead.is_slow:
                    break
            elif ahead.needs > self.limit_bytes:
                self._refuse(ahead)
            elif used + ahead.needs > self.limit_bytes:
                break
            elif ahead.plan is None and not ahead.hold_all():
                # Its worker may be one that waits behind it.
                ahead.needs, ahead.is_slow = None, True
                self._plan(ahead)
            else:
                used += ahead.needs
                ahead.admitted = True
                if ahead.plan is None:
                    ahead.ended.set()
        self.peak_bytes = max(self.peak_bytes, used)
        self._lock.notify_all()
