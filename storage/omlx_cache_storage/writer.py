"""The writer: one thread that moves pages from the hot tier to the cold one, in order of arrival.

A queued page stays pinned in the hot tier, so it is readable and its bytes are counted once.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

_log = logging.getLogger(__name__)

IDLE_SETTLE_SECONDS = 5.0
Documents = Callable[[BlockKey], dict[str, object]]
Outcome = Literal["written", "refused", "failed", "gone"]
"""How a job ended; `refused`: the disk's budget is taken by pages that are worth more; `gone`: the
page was discarded while it was queued."""


class _Job(NamedTuple):
    page: PageId
    nbytes: int


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
    `_refused` belongs to the writer's thread.
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
        self._settling = False
        self._stopping = False
        self._settle_wanted = False
        self._peak = 0
        self._written = 0
        self._written_bytes = 0
        self._dropped = 0
        self._failed = 0
        self._ended = 0
        self._refused = False
        self._thread = threading.Thread(target=self._run, name="omlx-cache-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, page: PageId, nbytes: int, *, wait: bool = False) -> bool:
        """Queue a page that the hot tier holds; False, counted, when the queue is full.

        With `wait` the caller blocks until there is room, unless the page could never fit. A page
        that the hot tier does not hold is False as well, and not counted.
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
            self._jobs.append(_Job(page, nbytes))
            self._bytes += nbytes
            self._peak = max(self._peak, self._bytes)
            self._changed.notify_all()
            return True

    def wait_for_progress(self, timeout: float) -> bool:
        """Block until a queued page is done; False at once when nothing is queued."""
        with self._changed:
            if not self._jobs and not self._busy:
                return False
            before = self._ended
            return self._changed.wait_for(lambda: self._ended != before or self._stopping, timeout)

    def flush(self, timeout: float | None) -> bool:
        """Block until nothing is pending; False when `timeout` seconds were not enough, or when
        the writer was stopped with work left."""
        with self._changed:
            self._settle_wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._idle() or self._stopping, timeout)
            return self._idle() or (self._stopping and not self._jobs and not self._busy)

    def _idle(self) -> bool:
        return not (self._jobs or self._busy or self._settling or self._settle_wanted)

    def stop(self, timeout: float | None) -> bool:
        """Write what is pending, within `timeout` seconds, and end the thread.

        False when something was left; it is counted as dropped. A write that hangs in the disk
        is left behind on its daemon thread.
        """
        clean = self.flush(timeout)
        with self._changed:
            self._stopping = True
            abandoned, self._jobs = list(self._jobs), deque()
            self._bytes -= sum(job.nbytes for job in abandoned)
            self._dropped += len(abandoned)
            self._changed.notify_all()
        for job in abandoned:
            self._hot.unpin(job.page, written=None)
        self._thread.join(timeout)
        return clean and not abandoned

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
                if job is None:
                    self._settling, self._settle_wanted = True, False
                else:
                    self._busy = True
            outcome = self._settle() if job is None else self._write(job)
            # One step: who waits for progress must not see a job counted and yet under way.
            with self._changed:
                self._busy = self._settling = False
                if job is not None:
                    self._count(job, outcome)
                self._changed.notify_all()

    def _settle(self) -> Outcome:
        try:
            self._cold.settle()
            self._hot.mark_dirty(self._cold.take_missing())
            return "written"
        except Exception:
            _log.exception("recency not recorded")
            return "failed"

    def _write(self, job: _Job) -> Outcome:
        page = self._hot.get(job.page)
        stamp = self._hot.used_ns(job.page)
        if page is None or stamp is None:
            return "gone"
        outcome: Outcome = "failed"
        try:
            result = self._cold.write(page, stamp, self._documents(page.meta.namespace))
            if result != "full":
                outcome = "refused" if result == "refused" else "written"
            self._refused = False
        except OSError as error:
            # Once, not for each of the thousands of pages that a full disk refuses.
            level = logging.DEBUG if self._refused else logging.WARNING
            _log.log(level, "page not written, its hot copy stays: %s", error)
            self._refused = True
        except Exception:
            _log.exception("page not written, its hot copy stays")
        self._hot.mark_dirty(self._cold.take_missing())
        # Whoever used the page meanwhile told the hot tier first, and the cold one in vain.
        used = self._hot.used_ns(job.page)
        if used is not None and used != stamp:
            self._cold.touch([job.page], used)
        # A page that the disk does not want is waited for no longer: it leaves memory like others.
        self._hot.unpin(job.page, written=None if outcome == "failed" else page)
        return outcome

    def _count(self, job: _Job, outcome: Outcome) -> None:
        self._bytes -= job.nbytes
        self._ended += 1
        self._written += outcome == "written"
        self._failed += outcome == "failed"
        self._dropped += outcome == "gone"
        self._written_bytes += job.nbytes if outcome == "written" else 0
