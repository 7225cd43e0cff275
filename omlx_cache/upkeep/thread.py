"""The upkeep thread: one a process, which looks after its stores once a second. It knows a store by
its parts, for the store itself may be lost before them."""

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import mlx.core as mx

from omlx_cache.control.server import ApiServer
from omlx_cache.restore.queue import RestoreQueue
from omlx_cache.upkeep.directory import ReuseKeeper
from omlx_cache.upkeep.memory import Level, MemoryFigures, Relief, level_of, reader
from omlx_cache_storage.io_threads import DiskThread, ReaderPool
from omlx_cache_storage.prefetch import Prefetcher
from omlx_cache_storage.remote.uploads import Uploads
from omlx_cache_storage.tiers import Tiers

if TYPE_CHECKING:
    from omlx_cache_storage.remote.tier import RemoteTier

_log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
THREADS_SECONDS = 1.0
"""How long `close` waits at most for reads that a disk does not answer."""
CLOSE_SECONDS = 30.0
"""Seconds that a lost store may take to write its pending pages."""


@dataclass(eq=False, slots=True)
class StoreParts:
    """The tiers, threads and socket of one store; none of them refers to the store. `ended` is True
    once `close` has done all that it can. Any thread may call."""

    tiers: Tiers
    relief: Relief
    pools: Sequence[ReaderPool | DiskThread]
    prefetcher: Prefetcher
    restores: RestoreQueue
    control: ApiServer | None
    reuse: ReuseKeeper
    remote: "RemoteTier | None"
    uploads: Uploads | None
    status: list[ApiServer] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)
    ended: bool = False

    def settle(self) -> None:
        """Release the memory of lost sessions and restores, which may hold the store; have the
        learning written."""
        self.restores.settle()
        self.tiers.counters.requests()
        self.reuse.step()

    def close(self, timeout: float) -> bool:
        """Write the pending pages, end the threads, remove the socket, free the hot tier; within
        `timeout` seconds. False when that was not enough to write everything. Several threads may
        do each step again: after an interrupted one the next goes on."""
        deadline = time.monotonic() + timeout

        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        self.tiers.end_soon()
        self.prefetcher.cancel_all()
        for server in list(self.status):
            server.close(min(left(), THREADS_SECONDS))
        clean = self.tiers.flush(left())
        if self.control is not None:
            self.control.close(left())
        if self.uploads is not None:
            self.uploads.close(left())
        clean = self.tiers.stop_writing(left()) and clean
        self.reuse.close(min(left(), THREADS_SECONDS))
        # The pages that are still being read have no use.
        deadline = min(deadline, time.monotonic() + THREADS_SECONDS)
        self.restores.shutdown(left())
        self.prefetcher.shutdown(left())
        for pool in self.pools:
            pool.stop(left())
        if self.remote is not None:
            self.remote.close(left())
        self.tiers.hot.close()
        self.ended = True
        return clean


class UpkeepThread:
    """Gives memory back when the system is short of it, and closes stores that were lost.

    Its thread runs while there are stores. `_lock` guards `_stores` and `_thread`. Finalizers put
    stores whose owner is garbage into `lost`, which takes no lock. `_read` belongs to the thread.
    """

    def __init__(self, read: Callable[[], MemoryFigures] | None = None) -> None:
        self._read = read
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._stores: set[StoreParts] = set()
        self._thread: threading.Thread | None = None
        self.lost: SimpleQueue[StoreParts | None] = SimpleQueue()
        self._looked = 0.0

    def keep(self, store: StoreParts) -> None:
        with self._lock:
            self._stores.add(store)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="omlx-cache-upkeep", daemon=True)
                thread.start()
                self._thread = thread

    def forget(self, store: StoreParts) -> None:
        with self._lock:
            self._stores.discard(store)
        self.lost.put(None)

    def close_lost(self, timeout: float) -> None:
        """Close the lost stores, within `timeout` seconds in all; for the end of the process."""
        deadline = time.monotonic() + timeout
        with self._lock:
            stores = list(self._stores)
        for store in stores:
            store.close(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            try:
                lost = self.lost.get(timeout=TICK_SECONDS)
            except Empty:
                lost = None
            if lost is not None:
                self._close_aside(lost)
                del lost
            with self._lock:
                stores = list(self._stores)
                if not stores:
                    self._thread = None
                    return
            try:
                self._look_after(stores)
            except Exception:
                _log.exception("memory is not looked after")
            del stores

    def _close_aside(self, store: StoreParts) -> None:
        """Close a store on a thread of its own: that may wait for a disk, and memory may not."""
        closing = threading.Thread(
            target=self._close, args=(store,), name="omlx-cache-closing", daemon=True
        )
        # While the process ends no thread can be had; `close_lost` is called then.
        with contextlib.suppress(RuntimeError):
            closing.start()

    def _close(self, store: StoreParts) -> None:
        _log.warning("a store was lost without close(): what is pending is written now")
        try:
            store.close(CLOSE_SECONDS)
        finally:
            self.forget(store)

    def _look_after(self, stores: list[StoreParts]) -> None:
        for store in stores:
            store.settle()
        now = time.monotonic()
        if now - self._looked < TICK_SECONDS / 2:
            return
        self._looked = now
        self._read = self._read or reader()
        figures = self._read()
        given = sum(store.relief.step(figures) for store in stores)
        wanted = max(store.relief.wanted_bytes for store in stores)
        if given or level_of(figures, wanted) is not Level.NORMAL:
            release_freed_memory()


def release_freed_memory() -> None:
    """Have MLX's allocator and the C library return their spare memory, on any thread."""
    mx.clear_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


upkeep_thread = UpkeepThread()
os.register_at_fork(after_in_child=upkeep_thread._start_over)
