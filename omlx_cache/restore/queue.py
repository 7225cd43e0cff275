"""Whose turn it is to read ahead: first come, first served, within a number of bytes."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.readers import ReaderPool

THREADS = 4
Task = Callable[[], None]


class Reading(Protocol):
    """Something that reads ahead in tasks, and takes memory from when it is admitted.

    `admitted` and `taken` are the queue's. `nbytes` is None before it is known; `hold_all` is
    called once there is room, and False takes the admission back; `refuse` is for one that is
    larger than the queue.
    """

    admitted: bool
    taken: bool

    def nbytes(self) -> int | None: ...
    def hold_all(self) -> bool: ...
    def refuse(self) -> None: ...
    def next_task(self) -> Task | None: ...
    def drop(self) -> None: ...


class RestoreQueue:
    """Bounds the bytes of all restores that were begun and not yet taken, and reads them in turn.

    Memory is granted in the order of `add`; who finds no room starts when others are taken or
    dropped. Mutable: `_readings` (in order) and `_granted`, guarded by `_lock`, which is held over
    no I/O, and `lost`, to which finalizers append without a lock.
    """

    def __init__(self, limit_bytes: int, *, threads: int = THREADS) -> None:
        self.limit_bytes = limit_bytes
        self.lost: deque[Reading] = deque()
        self._threads = threads
        self._pool = ReaderPool(threads, "omlx-cache-restore")
        self._lock = threading.Lock()
        self._workers = 0
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
        self._wake()

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
        self._wake()

    def drop(self, reading: Reading) -> None:
        """Give a reading's bytes back, whether it has begun or not; any number of times."""
        with self._lock:
            self._granted.pop(reading, None)
            if reading in self._readings:
                self._readings.remove(reading)
        reading.drop()
        self._wake()

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

    def _wake(self) -> None:
        """Have a thread look for work, if one is free."""
        with self._lock:
            if self._closed:
                return
            wanted = min(self._threads - self._workers, len(self._readings) + 1)
            self._workers += wanted
        for _ in range(wanted):
            try:
                self._pool.submit(self._work)
            except RuntimeError:
                return

    def _work(self) -> None:
        while (task := self._next()) is not None:
            task()
            # What a task leaves behind may be work for more than this thread.
            self._wake()

    def _next(self) -> Task | None:
        """Return the next task of the first reading that has one; None ends the worker."""
        self.settle()
        with self._lock:
            self._admit()
            for reading in self._readings:
                task = reading.next_task()
                if task is not None:
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
                return
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
