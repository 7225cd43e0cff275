"""What a store is made of and how that ends, apart from the store: it may be lost before."""

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from omlx_cache.control import ControlServer
from omlx_cache.restore.queue import RestoreQueue
from omlx_cache.upkeep.relief import Relief
from omlx_cache_storage.prefetch import Prefetcher
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.stats import Counters

THREADS_SECONDS = 1.0
"""How long `close` waits at most for reads that a disk does not answer."""


class Ending(Protocol):
    """What is asked of the tiers when a store ends."""

    @property
    def counters(self) -> Counters: ...
    def flush(self, timeout: float | None) -> bool: ...
    def stop_writing(self, timeout: float) -> bool: ...
    def empty_hot(self) -> None: ...


@dataclass(eq=False, slots=True)
class StoreParts:
    """The tiers, threads and socket of one store; none of them refers to the store.

    `_lock` guards `_closing`; `_ended` is set once everything has ended.
    """

    tiers: Ending
    relief: Relief
    read_pool: ReaderPool
    prefetcher: Prefetcher
    restores: RestoreQueue
    control: ControlServer | None
    pid: int = field(default_factory=os.getpid)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closing: bool = False
    _clean: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)

    def settle(self) -> None:
        """Give back what lost sessions and lost restores held: they may hold the store."""
        self.restores.settle()
        self.tiers.counters.requests()

    def close(self, timeout: float) -> bool:
        """Write what is pending, end the threads, remove the socket, free the hot tier.

        False when `timeout` seconds were not enough to write everything. The second caller waits
        for the first.
        """
        with self._lock:
            first, self._closing = not self._closing, True
        if not first:
            return self._ended.wait(timeout) and self._clean
        try:
            self._clean = self._close(timeout)
        finally:
            self._ended.set()
        return self._clean

    def _close(self, timeout: float) -> bool:
        self.prefetcher.cancel_all()
        clean = self.tiers.flush(timeout)
        if self.control is not None:
            self.control.close()
        clean = self.tiers.stop_writing(timeout if clean else 1.0) and clean
        deadline = time.monotonic() + min(timeout, THREADS_SECONDS)
        self.restores.shutdown(max(0.0, deadline - time.monotonic()))
        self.prefetcher.shutdown(max(0.0, deadline - time.monotonic()))
        self.read_pool.stop(max(0.0, deadline - time.monotonic()))
        self.tiers.empty_hot()
        return clean
