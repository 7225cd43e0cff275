"""The rates at which models compute, kept from one process to the next."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from omlx_cache_storage.cold.rates import KeptRate, read_rates, write_rate
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.interrupts import uninterrupted, wait_in_turns
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.work import WorkMeter

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 5.0
"""How long the thread is left alone at least: a namespace may come to the disk later than a rate,
and a disk may refuse."""


class RateKeeper:
    """Reads the rates of a cold directory at start, and keeps what is measured; on a thread of its
    own, which may wait for the disk. Any thread may call; nothing raises.

    `_lock` guards `_doing`, what the thread was asked for last, and `_after`, before which it is
    not asked again.
    """

    def __init__(self, work: WorkMeter, cold_dir: Path | None) -> None:
        self._work = work
        self._cold_dir = cold_dir
        self._names = TemporaryNames()
        self._pool = ReaderPool(1, "omlx-cache-rates")
        self._lock = threading.Lock()
        self._doing: Future[None] | None = None
        self._after = 0.0
        if cold_dir is not None:
            self._start(partial(self._read, cold_dir))

    @uninterrupted
    def step(self) -> None:
        """Have what has become worth keeping written; returns at once."""
        with self._lock:
            idle = self._doing is None or self._doing.done()
            if self._cold_dir is None or not idle or time.monotonic() < self._after:
                return
        if self._work.unsaved(all_of_them=False):
            self._start(partial(self._write, self._cold_dir, all_of_them=False))

    @uninterrupted
    def close(self, timeout: float) -> None:
        """Keep what was measured since, and end the thread; within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        if self._cold_dir is not None and self._work.unsaved(all_of_them=True):
            self._start(partial(self._write, self._cold_dir, all_of_them=True))
        with self._lock:
            doing = self._doing
        if doing is not None:
            wait_in_turns(partial(_ended, doing), timeout)
        self._pool.stop(max(0.0, deadline - time.monotonic()))

    def _start(self, call: Callable[[], None]) -> None:
        # The thread may be ended, or not to be had: then there is no rate, and no more is lost.
        with contextlib.suppress(RuntimeError):
            doing = self._pool.submit(_quietly, call)
            with self._lock:
                self._doing = doing
                self._after = time.monotonic() + PAUSE_SECONDS

    def _read(self, cold_dir: Path) -> None:
        for kept in read_rates(cold_dir):
            self._work.know(kept.model, kept.rate)

    def _write(self, cold_dir: Path, *, all_of_them: bool) -> None:
        for unsaved in self._work.unsaved(all_of_them=all_of_them):
            kept = KeptRate(unsaved.model, unsaved.rate)
            if write_rate(cold_dir, unsaved.namespace, kept, self._names):
                self._work.saved(unsaved)


def _quietly(call: Callable[[], None]) -> None:
    """Call what asks the disk: a rate that cannot be kept costs nobody anything."""
    try:
        call()
    except OSError as error:
        _log.debug("the rates of models are not kept: %s", error)
    except Exception:
        _log.exception("the rates of models are not kept")


def _ended(doing: "Future[None]", seconds: float | None) -> bool:
    try:
        doing.exception(seconds)
    except TimeoutError:
        return False
    return True
