"""The writer: one thread that moves pages from the hot tier to the cold one, in order of arrival.

A queued page stays pinned in the hot tier, so it is readable and its bytes are counted once.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from omlx_cache_storage.cold import ColdTier
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

_log = logging.getLogger(__name__)

IDLE_SETTLE_SECONDS = 5.0
Documents = Callable[[BlockKey], dict[str, object]]


class _Job(NamedTuple):
    page: PageId
    nbytes: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class WriterUsage:
    """What the writer did and what is still pending."""

    pending_pages: int
    pending_bytes: int
    peak_bytes: int
    limit_bytes: int
    written_pages: int
    written_bytes: int
    dropped_pages: int
    failed_pages: int


class Writer:
    """Writes pages behind the caller's back; `offer` never waits for a disk unless told to.

    Mutable: every field below `_changed`, a condition that guards them; any thread may call.
    """

    def __init__(self, hot: HotTier, cold: ColdTier, limit_bytes: int, documents: Documents):
        self._hot = hot
        self._cold = cold
        self._documents = documents
        self.limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._bytes = 0
        self._busy = False
        self._stopping = False
        self._settle_wanted = False
        self._peak = 0
        self._written = 0
        self._written_bytes = 0
        self._dropped = 0
        self._failed = 0
        self._thread = threading.Thread(target=self._run, name="omlx-cache-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, page: PageId, nbytes: int, *, wait: bool = False) -> bool:
        """Queue a page that the hot tier holds; False, counted, when the queue is full.

        With `wait` the caller blocks until there is room, unless the page could never fit.
        """
        with self._changed:
            if wait and nbytes <= self.limit_bytes:
                self._changed.wait_for(
                    lambda: self._bytes + nbytes <= self.limit_bytes or self._stopping
                )
            if self._stopping or self._bytes + nbytes > self.limit_bytes:
                self._dropped += 1
                return False
            if self._hot.pin(page) is None:
                return False
            self._jobs.append(_Job(page, nbytes, time.time_ns()))
            self._bytes += nbytes
            self._peak = max(self._peak, self._bytes)
            self._changed.notify_all()
            return True

    def wait_for_progress(self, timeout: float) -> bool:
        """Block until a queued page is done; False at once when nothing is queued."""
        with self._changed:
            if not self._jobs and not self._busy:
                return False
            before = self._written + self._failed
            return self._changed.wait_for(
                lambda: self._written + self._failed != before or self._stopping, timeout
            )

    def flush(self, timeout: float | None) -> bool:
        """Block until nothing is pending; False when `timeout` seconds were not enough."""
        with self._changed:
            self._settle_wanted = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not self._jobs and not self._busy and not self._settle_wanted, timeout
            )

    def stop(self, timeout: float | None) -> bool:
        """Write what is pending, within `timeout` seconds, and end the thread."""
        clean = self.flush(timeout)
        with self._changed:
            self._stopping = True
            abandoned, self._jobs = list(self._jobs), deque()
            self._bytes -= sum(job.nbytes for job in abandoned)
            self._dropped += len(abandoned)
            self._changed.notify_all()
        for job in abandoned:
            self._hot.unpin(job.page, written=False)
        self._thread.join(timeout)
        return clean

    def usage(self) -> WriterUsage:
        with self._changed:
            return WriterUsage(
                len(self._jobs) + self._busy,
                self._bytes,
                self._peak,
                self.limit_bytes,
                self._written,
                self._written_bytes,
                self._dropped,
                self._failed,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._jobs or self._stopping or self._settle_wanted,
                    IDLE_SETTLE_SECONDS,
                )
                if self._stopping:
                    return
                job = self._jobs.popleft() if self._jobs else None
                self._busy = job is not None
            written = False
            if job is None:
                self._cold.settle()
            else:
                written = self._write(job)
            with self._changed:
                self._busy = False
                if job is None:
                    self._settle_wanted = False
                else:
                    self._bytes -= job.nbytes
                    self._written += written
                    self._failed += not written
                    self._written_bytes += job.nbytes * written
                self._changed.notify_all()

    def _write(self, job: _Job) -> bool:
        page = self._hot.get(job.page)
        if page is None:
            return False
        try:
            written = self._cold.write(page, job.time_ns, self._documents(page.meta.namespace))
        except OSError as error:
            _log.warning("page not written, its hot copy stays: %s", error)
            written = False
        except Exception:
            _log.exception("page not written, its hot copy stays")
            written = False
        self._hot.unpin(job.page, written=written)
        return written
