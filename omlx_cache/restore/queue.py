"""Whose turn it is to read ahead: first come, first served, within a number of bytes."""

import threading
import time
from collections import deque

from omlx_cache.restore.background import Reading, Task
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.readers import ReaderPool

THREADS = 4
MOST_THREADS = 16
STUCK_SECONDS = 0.5
"""A thread that is at one read for longer, or for a request that has gone, is replaced: a file that
hangs delays no other request. `MOST_THREADS` bounds those that hang."""
_NEVER = float("-inf")


class RestoreQueue:
    """Bounds the bytes of all restores that were begun and not yet taken, and reads them in turn.

    Memory is granted in the order of `add`, to those whose size is known; who finds no room starts
    when others are taken or dropped. Mutable: `_readings` (in order), `_granted`, `_workers` (how
    many look for tasks or are at one) and `_busy` (since when each is at whose): guarded by `_lock`
    without I/O; and `lost`, to which finalizers append without a lock.
    """

    def __init__(self, limit_bytes: int, *, threads: int = THREADS) -> None:
        self.limit_bytes = limit_bytes
        self.lost: deque[Reading] = deque()
        self._threads = threads
        self._pool = ReaderPool(threads, "omlx-cache-restore", most=MOST_THREADS)
        self._lock = threading.Lock()
        self._workers = 0
        self._busy: dict[object, tuple[float, Reading]] = {}
        self._readings: list[Reading] = []
        self._granted: dict[Reading, int] = {}
        self._peak = 0
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes granted now."""
        self.settle()
        with self._lock:
            return sum(self._granted.values())

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were ever granted at once."""
        with self._lock:
            return self._peak

    def add(self, reading: Reading) -> None:
        """Let a reading begin when its turn comes and there is room; returns at once."""
        self.settle()
        with self._lock:
            if not self._closed:
                self._readings.append(reading)
                self._admit()
        self.wake()

    def take(self, reading: Reading) -> None:
        """Count a reading's bytes no longer: they are the live request's now.

        One that still waits for room begins at once, before all others.
        """
        with self._lock:
            reading.taken = True
            self._granted.pop(reading, None)
            if reading in self._readings:
                self._readings.remove(reading)
            if not self._closed:
                self._readings.insert(0, reading)
        self.wake()

    def drop(self, reading: Reading) -> None:
        """Give a reading's bytes back, whether it has begun or not; any number of times."""
        with self._lock:
            self._granted.pop(reading, None)
            if reading in self._readings:
                self._readings.remove(reading)
            for worker, (_, wanted) in self._busy.items():
                if wanted is reading:
                    self._busy[worker] = _NEVER, wanted
        reading.drop()
        self.wake()

    @uninterrupted
    def settle(self) -> None:
        """Give back the bytes of handles that were lost; called by every other operation."""
        while self.lost:
            try:
                reading = self.lost.popleft()
            except IndexError:
                return
            self.drop(reading)

    def shutdown(self, timeout: float) -> bool:
        """Drop everything; False when a read is still waiting for the disk after `timeout`."""
        with self._lock:
            self._closed = True
            readings = [*self._readings, *self._granted]
        for reading in readings:
            self.drop(reading)
        return self._pool.stop(timeout)

    @uninterrupted
    def wake(self) -> None:
        """Have threads look for work, if some are free or hang; to be called again by who waits."""
        with self._lock:
            if self._closed:
                return
            allowed = self._allowed()
            self._pool.allow(allowed)
            wanted = max(0, min(allowed - self._workers, len(self._readings) + 1))
            self._workers += wanted
        for begun in range(wanted):
            try:
                self._pool.submit(self._work)
            except RuntimeError:
                # Closed meanwhile, or the system has no thread left: the next call tries again.
                with self._lock:
                    self._workers -= wanted - begun
                return

    def _allowed(self) -> int:
        """Return how many workers there may be, those that hang included."""
        latest = time.monotonic() - STUCK_SECONDS
        stuck = sum(since < latest for since, _ in self._busy.values())
        return min(self._threads + stuck, MOST_THREADS)

    def _work(self) -> None:
        worker = object()
        while (task := self._next(worker)) is not None:
            task()
            # What a task leaves behind may be work for more than this thread.
            self.wake()

    def _next(self, worker: object) -> Task | None:
        """Return the next task of the first reading that has one; None ends the worker."""
        self.settle()
        with self._lock:
            self._busy.pop(worker, None)
            self._admit()
            for reading in self._readings if self._workers <= self._allowed() else ():
                task = reading.next_task()
                if task is not None:
                    self._busy[worker] = time.monotonic(), reading
                    return task
            self._workers -= 1
            return None

    def _admit(self) -> None:
        """Grant memory in order, as far as there is room."""
        used = sum(self._granted.values())
        for reading in list(self._readings):
            if reading.admitted:
                continue
            if reading.taken:
                reading.admitted = True
                continue
            nbytes = reading.nbytes()
            if nbytes is None:
                # Its header may be in a file that hangs.
                continue
            if nbytes > self.limit_bytes:
                reading.refuse()
                self._readings.remove(reading)
                continue
            if used + nbytes > self.limit_bytes:
                return
            if not reading.hold_all():
                return
            reading.admitted = True
            self._granted[reading] = nbytes
            used += nbytes
            self._peak = max(self._peak, used)
