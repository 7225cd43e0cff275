"""What the eviction policies have learned, kept from one process to the next."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from omlx_cache_storage.cold.small_files import Reuse, TemporaryNames, write_reuse
from omlx_cache_storage.interrupts import done_within, uninterrupted
from omlx_cache_storage.readers import ReaderPool

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0
"""A policy changes its mind slowly: what a killed process had learned since is no loss."""


class ReuseKeeper:
    """Writes what the policies of a store have learned, when that is news, on a thread of its own.
    Any thread may call; nothing raises.

    `known` is what was read at the start: a tier that learns nothing leaves its part as it was.
    `_lock` guards `_writing`, the latest write, and `_after`, before which `step` begins no other.
    """

    def __init__(
        self, learned: Callable[[], Reuse], cold_dir: Path | None, known: Reuse | None = None
    ) -> None:
        self._learned = learned
        self._cold_dir = cold_dir
        self._known = known or Reuse()
        self._names = TemporaryNames()
        self._pool = ReaderPool(1, "omlx-cache-reuse")
        self._lock = threading.Lock()
        self._writing: Future[None] | None = None
        self._after = 0.0

    @uninterrupted
    def step(self) -> None:
        """Have what was learned written, once a minute at most; returns at once."""
        with self._lock:
            idle = self._writing is None or self._writing.done()
            idle = idle and time.monotonic() >= self._after
        if idle:
            self._keep()

    @uninterrupted
    def close(self, timeout: float) -> None:
        """Keep what was learned since, and end the thread; within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self._keep()
        with self._lock:
            writing = self._writing
        if writing is not None:
            done_within(writing, timeout)
        self._pool.stop(max(0.0, deadline - time.monotonic()))

    def _keep(self) -> None:
        """Have the thread write what is news."""
        if self._cold_dir is None or self._news() == self._known:
            return
        # The thread may be ended, or not to be had: then nothing is kept, and no more is lost.
        with contextlib.suppress(RuntimeError):
            writing = self._pool.submit(self._write, self._cold_dir)
            with self._lock:
                self._writing = writing
                self._after = time.monotonic() + PAUSE_SECONDS

    def _news(self) -> Reuse:
        learned = self._learned()
        return Reuse(learned.memory or self._known.memory, learned.disk or self._known.disk)

    def _write(self, cold_dir: Path) -> None:
        try:
            news = self._news()
            if write_reuse(cold_dir, news, self._names):
                self._known = news
        except OSError as error:
            _log.debug("what was learned of reuse is not kept: %s", error)
        except Exception:
            _log.exception("what was learned of reuse is not kept")
