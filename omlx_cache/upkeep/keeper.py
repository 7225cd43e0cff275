"""The keeper: one thread a process that looks after its stores once a second."""

import contextlib
import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import mlx.core as mx

from omlx_cache.parts import StoreParts
from omlx_cache.upkeep.memory import Level, MemoryFigures, level_of, reader

_log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
CLOSE_SECONDS = 30.0
"""What a store that was lost may take to write what is pending."""


class Keeper:
    """Gives memory back when the system is short of it, and closes stores that were lost.

    Its thread runs while there are stores. `_lock` guards `_stores` and `_thread`; `lose` takes
    none, since a finalizer calls it. `read` belongs to the thread.
    """

    def __init__(self, read: Callable[[], MemoryFigures] | None = None) -> None:
        self._read = read
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._stores: set[StoreParts] = set()
        self._thread: threading.Thread | None = None
        self._lost: SimpleQueue[StoreParts | None] = SimpleQueue()
        self._looked = 0.0

    def keep(self, store: StoreParts) -> None:
        """Look after a store from now on."""
        with self._lock:
            self._stores.add(store)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="omlx-cache-keeper", daemon=True)
                thread.start()
                self._thread = thread

    def forget(self, store: StoreParts) -> None:
        """Look after a store no longer; the thread ends with the last one."""
        with self._lock:
            self._stores.discard(store)
        self._lost.put(None)

    def lose(self, store: StoreParts) -> None:
        """Have a store closed whose owner is garbage. Takes no lock: a finalizer may call it."""
        self._lost.put(store)

    def close_lost(self, timeout: float) -> None:
        """Close the stores that were lost and are not closed yet, within `timeout` seconds in all;
        for the end of the process."""
        deadline = time.monotonic() + timeout
        with self._lock:
            stores = list(self._stores)
        for store in stores:
            store.close(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            try:
                lost = self._lost.get(timeout=TICK_SECONDS)
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
        reliefs = [store.relief for store in stores if store.relief.wanted_bytes]
        if not reliefs or now - self._looked < TICK_SECONDS / 2:
            return
        self._looked = now
        self._read = self._read or reader()
        figures = self._read()
        given = sum(relief.step(figures) for relief in reliefs)
        wanted = max(relief.wanted_bytes for relief in reliefs)
        if given or level_of(figures, wanted) is not Level.NORMAL:
            release_freed_memory()


def release_freed_memory() -> None:
    """Have MLX's allocator and the C library give what they keep for later to the system.

    MLX's allocators guard their caches themselves, so this may be called on any thread.
    """
    mx.clear_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


keeper = Keeper()
os.register_at_fork(after_in_child=keeper._start_over)
