"""The writer: one thread that moves pages from the hot tier to the cold one, in order of arrival.

A queued page stays pinned in the hot tier, so it is readable and its bytes are counted once.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Literal

from omlx_cache_storage.breaker import UNAVAILABLE, CircuitBreaker
from omlx_cache_storage.calls import turn, wait_in_turns
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.events import SILENT, EventLog
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.hot_page import REFUSED, PageState, Write, fits
from omlx_cache_storage.io_threads import LastAnswer, follow
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, WriteResult
from omlx_cache_storage.stats import WriterUsage

_log = logging.getLogger(__name__)

IDLE_SECONDS = 5.0
FREE_SECONDS = 30.0
"""How often an idle writer sees to the disk's free space: a busy one does for each page."""
ENDING_SECONDS = 3.0
"""A disk that answers nothing for so long keeps no process from ending: longer than most syncs."""
_LOOK_SECONDS = 0.25
_AT_ONCE = -1
Documents = Callable[[BlockKey], dict[str, object]]
Outcome = Literal["written", "refused", "rationed", "undecodable", "failed", "put off", "gone"]
"""How a job ended, beside the results of a write. `put off`: the disk failed a moment ago, and was
not asked. `gone`: the page was deleted while it was queued."""

_UNTIL_WRITTEN = (
    "no page is written to the disk: %s; memory keeps what it can, the next try comes within a "
    "minute, and `omlx-cache doctor` says what helps"
)
SETBACKS: tuple[Outcome, ...] = ("failed", "put off", "rationed")
REFUSALS: tuple[Outcome, ...] = ("refused", "rationed", "undecodable")
_UNWRITTEN: dict[Outcome, str] = {
    "refused": "no room: a budget or limit is full of pages that are used more",
    "rationed": "what may be written in a day is spent",
    "undecodable": "the disk has it in a form that only others can decode",
    "put off": "the disk was full or failed a moment ago",
}


class Writer:
    """Writes pages behind the caller's back; `offer` never waits. Any thread may call.

    The condition `_changed` guards all that changes, but `_failing`, `_budget` (the directory's),
    `_settled` and `_kept_free`, which belong to the writer's thread. `_barriers` is what `flush`
    and `settle` wait for: recency recorded and the directory read, after so many jobs had ended; a
    missing barrier is done. `_failing` is the size of the smallest page that the disk has refused
    since it took one as large, 0 without one. An idle writer takes up due pages of memory that
    found no room in the queue. The thread begins with `opening`, which may take long and sets
    `opened`, and ends with closing the cold tier.

    After a few failures in a row the writer backs off from the disk: a page queued then is put off,
    counted as dropped, and stays dirty. A flush probes it at once.
    """

    def __init__(
        self,
        hot: HotTier,
        cold: ColdTier,
        limit_bytes: int,
        documents: Documents,
        events: EventLog = SILENT,
        opening: Callable[[], None] = lambda: None,
    ) -> None:
        self._hot = hot
        self._cold = cold
        self._documents = documents
        self._events = events
        self._opening = opening
        self._progress = LastAnswer()
        self._ending = False
        self._at_work = True
        self.opened = threading.Event()
        self.limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._jobs: deque[Write] = deque()
        self._bytes = self._peak = self._accepted = self._written_bytes = self._dropped = 0
        self._busy = self._stopping = False
        self._failing = 0
        self._budget = cold.limit_bytes
        self._barriers: dict[object, int] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._settled = self._kept_free = time.monotonic()
        self._breaker = CircuitBreaker()
        self._thread = threading.Thread(target=self._run, name="omlx-cache-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def has_room(self, nbytes: int) -> bool:
        with self._changed:
            return not self._stopping and fits(nbytes, self._bytes, self.limit_bytes)

    def offer(self, pages: Iterable[PageId]) -> bool:
        """Queue the dirty ones of the pages, in order, and before each what leads to it, until one
        does not fit; False, and nothing counted, then."""
        with self._changed:
            # A writer that is stopping has room for none.
            queued, limit = (1, 0) if self._stopping else (self._bytes, self.limit_bytes)
            writes, all_fit = self._hot.queue(pages, queued, limit)
            for write in writes:
                self._jobs.append(write)
                self._bytes += write.nbytes
                self._accepted += 1
                self._peak = max(self._peak, self._bytes)
                self._changed.notify_all()
        return all_fit

    def ended(self, *outcomes: Outcome) -> int:
        """Return how many jobs have ended, or have ended so."""
        with self._changed:
            counts = self._outcomes
            return sum(map(counts.__getitem__, outcomes)) if outcomes else counts.total()

    def wait_for_progress(self, timeout: float, since: int | None = None) -> bool:
        """Block until a queued page is done, or at once if one is since `ended` was that; False at
        once when nothing is queued either."""
        before, ended = self.ended() if since is None else since, self._outcomes.total
        is_over = partial(
            turn,
            self._changed,
            lambda: ended() != before or self._stopping or not (self._jobs or self._busy),
        )
        self._wait_for(is_over, timeout)
        return self.ended() != before

    def flush(self, timeout: float) -> bool:
        """Block until each page accepted before the call is done and recency is recorded.

        False when `timeout` seconds were not enough, or when the writer was stopped with work left.
        Pages offered meanwhile are not waited for.
        """
        with self._changed:
            accepted = self._accepted
            self._breaker.ask_again()
        return self._pass(accepted, timeout) or (self._stopping and self.ended() >= accepted)

    @property
    def settling(self) -> bool:
        return _AT_ONCE in self._barriers.values()

    def settle(self, timeout: float) -> bool:
        """Block until recency is recorded and the directory is known as it is now, before another
        page is written; False after `timeout` seconds."""
        return self._pass(_AT_ONCE, timeout)

    def _pass(self, after: int, timeout: float) -> bool:
        barrier = object()
        with self._changed:
            self._barriers[barrier] = after
            self._changed.notify_all()
        is_over = partial(
            turn, self._changed, lambda: barrier not in self._barriers or self._stopping
        )
        self._wait_for(is_over, timeout)
        return barrier not in self._barriers

    def _wait_for(self, wait: Callable[[float | None], bool], timeout: float) -> None:
        """Call `wait` until it is True, or for `timeout` seconds; or, in a process that ends soon,
        until the disk hangs."""
        deadline, left = time.monotonic() + timeout, timeout
        while not wait_in_turns(wait, max(0.0, min(left, _LOOK_SECONDS))):
            left = deadline - time.monotonic()
            hangs = self._at_work and self._progress.stalls(ENDING_SECONDS)
            if left <= 0 or (hangs and self._ending):
                return

    def stop(self, timeout: float) -> bool:
        """Write the pending pages and end the thread, within `timeout` seconds in all.

        False when some are left; they are counted as dropped. A write that hangs in the disk is
        left behind on its daemon thread.
        """
        deadline = time.monotonic() + timeout
        clean = self.flush(timeout)
        with self._changed:
            self._stopping = True
            abandoned, self._jobs = list(self._jobs), deque()
            self._bytes -= sum(job.nbytes for job in abandoned)
            self._dropped += len(abandoned)
            self._changed.notify_all()
        for job in abandoned:
            if (held := self._hot.record(job.page, job.came_ns)) is not None:
                self._events.note_page("unwritten", "cold", held.meta, "not written before the end")
            self._hot.end_write(job)

        def ended(seconds: float | None) -> bool:
            self._thread.join(seconds)
            return self.has_ended

        self._wait_for(ended, deadline - time.monotonic())
        return clean and not abandoned

    @property
    def has_ended(self) -> bool:
        return self._stopping and not self._thread.is_alive()

    def usage(self) -> WriterUsage:
        with self._changed:
            ended = self._outcomes
            return WriterUsage(
                len(self._jobs) + self._busy,
                self._bytes,
                self._peak,
                self.limit_bytes,
                ended["written"],
                self._written_bytes,
                self._dropped + self._hot.dropped,
                ended["failed"],
                ended["refused"] + ended["undecodable"],
                ended["rationed"],
            )

    def end_soon(self) -> None:
        """From now on wait for the disk only while it answers: the process is about to end."""
        with self._changed:
            self._ending = True
            self._progress.move()
            self._changed.notify_all()

    def _run(self) -> None:
        follow(self._progress)
        try:
            self._opening()
        except Exception:
            _log.exception("the directory is not opened")
        self.opened.set()
        self._work()
        self._cold.close()

    def _work(self) -> None:
        answered = True
        while True:
            with self._changed:
                self._at_work = False
                woken = self._changed.wait_for(
                    lambda: bool(
                        self._jobs
                        or self._stopping
                        or min(self._barriers.values(), default=inf) <= self._outcomes.total()
                    ),
                    IDLE_SECONDS,
                )
                if self._stopping:
                    return
                self._at_work = True
                if answered:
                    self._progress.move()
                # First, so that a flush does not wait for later offers.
                ended = self._outcomes.total()
                due = [barrier for barrier, after in self._barriers.items() if after <= ended]
                job = self._jobs.popleft() if self._jobs and not due else None
                self._busy = job is not None
            outcome = self._write(job) if job is not None else self._settle(is_idle=not woken)
            # A lock that was waited for in vain is no progress: its holder may hang.
            answered = outcome != "failed"
            if job is not None and time.monotonic() - self._settled >= IDLE_SECONDS:
                # Others wait for the recency that this process knows of, however busy it is.
                self._settle()
            # One step: who waits for progress must not see a job counted and yet in flight.
            with self._changed:
                self._busy = False
                if job is not None:
                    self._count(job, outcome)
                for barrier in due:
                    del self._barriers[barrier]
                # A disk that fails is probed after a pause, not in a loop.
                idle = not self._jobs and not self._breaker.is_open
                self._changed.notify_all()
            if idle and (outcome == "written" or not woken):
                self.tick()

    def tick(self) -> None:
        self.offer(self._hot.due(IDLE_SECONDS))

    def _settle(self, *, is_idle: bool = False) -> Outcome:
        self._settled = now = time.monotonic()
        trouble = self._cold.trouble
        try:
            self._cold.settle()
            if trouble and not self._cold.trouble:
                with self._changed:
                    self._breaker.ask_again()
            if is_idle and now - self._kept_free >= FREE_SECONDS:
                self._kept_free = now
                self._cold.keep_free()
            self._note_losses()
        except Exception:
            _log.exception("recency not recorded")
        return "gone"

    def _write(self, job: Write) -> Outcome:
        while True:
            held = self._hot.record(job.page, job.came_ns)
            if held is None or (page := held.page) is None:
                return "gone"
            stamp, before = held.stamp_ns, self._hot.record(page.meta.before)
            # What leads to it was rejected: without that it is of no use on the disk.
            outcome: Outcome = "refused"
            if before is None or before.state not in (*REFUSED, PageState.PREPARED):
                outcome = self._ask_disk(page, stamp)
            elif before.owed:
                outcome = "rationed"
            # A use meanwhile told the hot tier first, and the cold one in vain.
            held = self._hot.record(job.page, job.came_ns)
            if held is None or outcome not in REFUSALS or held.stamp_ns <= stamp:
                break
        if held is not None and held.stamp_ns > stamp:
            self._cold.touch([job.page], held.stamp_ns)
        elif held is not None and held.stamp_ns < stamp:
            # It was superseded while it was written.
            self._cold.demote([job.page], held.stamp_ns)
        if outcome in _UNWRITTEN:
            self._events.note_page("unwritten", "cold", page.meta, _UNWRITTEN[outcome])
        there = self._hot.end_write(
            job,
            written=page if outcome == "written" else None,
            refused_ns=stamp if outcome in REFUSALS else None,
            rationed=outcome == "rationed",
        )
        if outcome == "written" and not there:
            # It was removed from both tiers while it was written.
            self._cold.discard([job.page])
            outcome = "gone"
        # Last: what left the disk after it was published is news to memory.
        self._note_losses()
        return outcome

    def _note_losses(self) -> None:
        """Tell memory which pages the disk lost, and which are pinned now. An evicted page is
        written again at its next use: else later pages of its chain would lie on the disk without
        their root."""
        self._hot.mark_lost(self._cold.take_lost())
        before, self._budget = self._budget, self._cold.limit_bytes
        if before < self._budget:
            # It may have room for what was rejected or evicted.
            self._hot.ask_again()
        self._hot.repin()

    def _ask_disk(self, page: Page, stamp: int) -> Outcome:
        with self._changed:
            if not self._breaker.enter():
                return "put off"
        result: WriteResult = "full"
        fault: Exception | None = None
        nbytes = page.meta.nbytes
        try:
            result = self._cold.write(page, stamp, self._documents(page.meta.namespace))
            trouble = (
                "it is full (of bytes or files)"
                if self._cold.evictor.is_short
                else "its budget has no room"
            )
        except OSError as error:
            trouble = error.strerror or str(error)
        except Exception as error:
            trouble, fault = f"{type(error).__name__}: {error}", error
        if result == "full":
            # Once, not for each page that a full disk refuses.
            level = logging.WARNING if fault is None else logging.ERROR
            # The tier says itself that it is unavailable.
            told = 0 < self._failing <= nbytes or self._cold.trouble.startswith(UNAVAILABLE)
            _log.log(logging.DEBUG if told else level, _UNTIL_WRITTEN, trouble, exc_info=fault)
            self._failing = min(self._failing or nbytes, nbytes)
        elif result == "written" and 0 < self._failing <= nbytes:
            _log.warning("pages are written to the disk again")
            self._failing = 0
        with self._changed:
            if result != "full":
                self._breaker.succeeded()
                return "written" if result == "present" else result
            self._breaker.failed()
        self._events.note_page("failed", "cold", page.meta, f"not written: {trouble}")
        return "failed"

    def _count(self, job: Write, outcome: Outcome) -> None:
        self._bytes -= job.nbytes
        self._outcomes[outcome] += 1
        self._written_bytes += job.nbytes if outcome == "written" else 0
