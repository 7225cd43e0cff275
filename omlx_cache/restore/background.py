"""The reading half of a restore that has begun: pages come in on threads, and touch bytes only.

The threads never see a cache. On the host they allocate and evaluate the buffers, which MLX allows
any thread that hands over evaluated arrays, and copy plain pages into them; a page is read
into memory of its own first, so a read that ends late writes into nothing that was given
away. What must be decoded, windows and states wait as pages for the model's thread. On a GPU all
pages do: joining them there is one operation for many, and host views would move the buffers.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial

from omlx_cache.adapters.base import PAGED
from omlx_cache.arrays.mlxio import on_host
from omlx_cache.restore.fetch import READ_BYTES, fetch
from omlx_cache.restore.host import HostTargets
from omlx_cache.restore.lookup import RestorePoint
from omlx_cache.restore.plan import PageFailed, PageRead, Plan, batches, is_direct
from omlx_cache.restore.source import held_pages
from omlx_cache.restore.walk import DISK_PASSES, Walk, plan_for
from omlx_cache_storage.errors import PageUnreadable
from omlx_cache_storage.page import Page, PageId
from omlx_cache_storage.tiers import Expecting

_log = logging.getLogger(__name__)

TOGETHER = 3
"""Small pages that one task reads: at a deadline only whole tasks have come."""

Task = Callable[[], None]


class _State(Enum):
    NEW = auto()
    PLANNING = auto()
    PLANNED = auto()
    READING = auto()
    ENDED = auto()


class Reading:
    """One request's pages on their way. A queue says when it may take memory, and runs its tasks.

    Mutable, guarded by `_lock`, which is held over no I/O: `walk` (replaced, never changed),
    `point`, `plan`, `targets`, `arrived`, `read`, and the state of the reads. `ended` is set once
    nothing more will come; `settled` then too, and once waiting for it is in vain. `_began_at` and
    `_ended_at` say when the reads did so. `admitted` and `taken` belong to the queue. The thread
    that plans waits for other machines to say what they have: `_waits` is True then.
    """

    def __init__(self, walk: Walk) -> None:
        # From here on the keys are only read, so that every thread may walk.
        if len(walk.chain):
            walk.chain.key(len(walk.chain))
        self.admitted = self.taken = self.oversize = False
        self.ended = threading.Event()
        self.settled = threading.Event()
        self._lock = threading.Lock()
        self._fill = on_host()
        self.walk = walk
        # What other machines have is found out meanwhile, and waited for by the thread that plans.
        self.point = walk.find(wait=0.0)
        self.plan: Plan | None = None
        self.targets: HostTargets | None = None
        self.arrived: dict[PageId, Page] = {}
        self.read: set[PageId] = set()
        self._passes = 1
        self._state = _State.NEW
        self._closed = False
        self._left: deque[list[PageRead]] = deque()
        self._under_way = 0
        self._failed: PageFailed | None = None
        self._failed_at = 0
        self._began_at: float | None = None
        self._ended_at: float | None = None
        self._asks = walk.source.asks and self.point.position < walk.limit
        self._waits = False
        self._all_hot = self._is_hot()
        self._expected: Expecting | None = None

    @property
    def seconds(self) -> float:
        """How long it has been reading, or did."""
        began, ended = self._began_at, self._ended_at
        return 0.0 if began is None else (ended or time.perf_counter()) - began

    def nbytes(self) -> int | None:
        """Return the memory that it takes from when it is admitted; None before it is planned."""
        with self._lock:
            if self._state is _State.PLANNING or (self._state is _State.NEW and not self._all_hot):
                return None
            if self.plan is None or not self._fill:
                return sum(use.info.nbytes for use in self.point.all_uses)
            aside = [use for use in self.point.all_uses if self.plan.encoded or _is_aside(use.page)]
            return self.plan.nbytes + sum(use.info.nbytes for use in aside)

    def hold_all(self) -> bool:
        """Take hold of every page and end at once if all are in memory; called once admitted.

        True also for a reading that has pages to read. False, and nothing held, when one was
        evicted since the walk: then it must be planned, and admitted, like others.
        """
        if not self._all_hot or self._state is not _State.NEW:
            return True
        self._hold(self.point)
        self._all_hot = all(use.page in self.arrived for use in self.point.all_uses)
        if self._all_hot:
            self._end()
        else:
            self.arrived = {}
        return self._all_hot

    def next_task(self) -> Task | None:
        """Return what a thread may do now, None when there is nothing. The queue calls it."""
        with self._lock:
            if self._closed:
                return None
            if self._state is _State.NEW:
                self._state = _State.PLANNING
                return self._guarded(self._make_plan)
            if self._state is _State.PLANNED and self.admitted:
                self._state = _State.READING
                self._under_way = 1
                return self._guarded(self._prepare)
            if self._state is _State.READING and self._left:
                self._under_way += 1
                return self._guarded(partial(self._read, self._left.popleft()))
            return None

    def ask_no_more(self) -> None:
        """Let another thread plan with what is here, if one waits for other machines."""
        with self._lock:
            if self._waits:
                self._waits = self._asks = False
                self._state = _State.NEW

    def refuse(self) -> None:
        """Say that it is larger than the queue may hold: nothing comes before it is taken."""
        self.oversize = True
        self.settled.set()

    def close(self) -> None:
        """Begin no more reads, and let those under way write nowhere. Waits for memory only."""
        with self._lock:
            self._closed = True
            self._left.clear()
            targets, expected = self.targets, self._expected
        if expected is not None:
            expected.close()
        if targets is not None:
            targets.close()

    def drop(self) -> None:
        """Close and give the memory back; any thread, any number of times."""
        self.close()
        with self._lock:
            self.targets = None
            self.arrived = {}
        # Nobody will end it: who waits for it, on whatever thread, must not wait for ever.
        self._end()

    def _guarded(self, task: Task) -> Task:
        """Return the task such that an unexpected error ends the reading, and no thread."""

        def run() -> None:
            try:
                task()
            except Exception:
                _log.exception("reading ahead stopped")
                self.close()
                self._end()

        return run

    def _make_plan(self) -> None:
        """Plan, below a page that fails if one does; reads headers."""
        walk, point = self.walk, self._point()
        if point is None:
            return
        while point.position:
            held = held_pages(walk.source, point, self.arrived)
            try:
                plan = plan_for(walk, point, held)
            except PageFailed as failed:
                walk = walk.copy()
                walk.learn(failed, point, held)
                point = walk.find()
                self._passes += 1
                if self._passes > DISK_PASSES:
                    break
            else:
                with self._lock:
                    self.walk, self.point, self.plan = walk, point, plan
                    self._state = _State.PLANNED
                return
        with self._lock:
            self.walk, self.point = walk, point
        self._end()

    def _point(self) -> RestorePoint | None:
        """Return what is to be restored, other machines asked; None once another thread plans."""
        with self._lock:
            asks = self._waits = self._asks
        if not asks:
            return self.point
        point = self.walk.find()
        with self._lock:
            waited, self._waits = self._waits, False
        return point if waited else None

    def _prepare(self) -> None:
        """Take memory, let the reads begin, and copy what was in memory from the start."""
        with self._lock:
            plan = self.plan
            if self._closed or plan is None:
                return
            self._began_at = self._began_at or time.perf_counter()
        self._hold(self.point)
        with self._lock:
            if self._closed:
                return
            if self._fill:
                self.targets = HostTargets(plan, before=self.targets)
            filled = {} if self.targets is None else self.targets.filled
            here = [read for read in plan.reads if read.use.page in self.arrived]
            missing = [
                read
                for read in plan.reads
                if read.use.page not in self.arrived and read.use.page not in filled
            ]
        wanted = [read.use.page for read in missing]
        self.walk.source.withdraw(wanted)
        self._expect(wanted)
        with self._lock:
            self._left.extend(() if self._closed else batches(missing, TOGETHER, READ_BYTES))
            pages = dict(self.arrived)
        self._deliver([read for read in here if read.use.page in pages], pages)
        self._one_ended()

    def _read(self, batch: Sequence[PageRead]) -> None:
        pages: dict[PageId, Page] = {}
        for read in batch:
            if self._closed:
                break
            try:
                page = fetch(self.walk.source, read)
                self.read.add(read.use.page)
                if page is not None:
                    pages[read.use.page] = page
            except PageFailed as failed:
                self._fail(read, failed)
                break
            except Exception as error:
                _log.exception("a page cannot be read")
                self._fail(read, PageFailed(read.use.page, PageUnreadable(str(error))))
                break
        self._deliver([read for read in batch if read.use.page in pages], pages)
        self._one_ended()

    def _deliver(self, reads: Sequence[PageRead], pages: Mapping[PageId, Page]) -> None:
        """Put pages where they belong: their bytes into the targets, or the pages aside."""
        targets = self.targets
        direct: list[PageRead] = []
        for read in reads:
            page = pages[read.use.page]
            try:
                fits = is_direct(read, page.meta)
            except PageFailed as failed:
                self._fail(read, failed)
                continue
            if targets is not None and fits and not _is_aside(read.use.page):
                direct.append(read)
                continue
            with self._lock:
                if not self._closed:
                    self.arrived[read.use.page] = page
        if targets is not None and targets.take_all(direct, pages):
            with self._lock:
                for read in direct:
                    self.arrived.pop(read.use.page, None)

    def _fail(self, read: PageRead, failed: PageFailed) -> None:
        """Note the failure that is nearest to the root, and begin no more reads."""
        with self._lock:
            self._left.clear()
            if self._failed is None or read.use.info.position < self._failed_at:
                self._failed, self._failed_at = failed, read.use.info.position

    def _one_ended(self) -> None:
        """Go on when the last task of a pass has ended: to the end, or to a pass below a page that
        failed."""
        with self._lock:
            self._under_way -= 1
            if self._under_way or self._left or self._closed:
                return
            failed, self._failed = self._failed, None
            if failed is not None:
                self._state = _State.PLANNING
        if failed is None:
            self._end()
            return
        walk = self.walk.copy()
        walk.learn(failed, self.point, self.arrived)
        point = walk.find()
        self._passes += 1
        with self._lock:
            self.walk, self.point = walk, point
        if self._passes > DISK_PASSES:
            self._end()
        else:
            self._make_plan()

    def _expect(self, pages: Sequence[PageId]) -> None:
        """Have pages of other machines sent, until the reads have ended."""
        expected = self.walk.source.expect(pages)
        with self._lock:
            before, self._expected = self._expected, expected
            closed = self._closed
        if before is not None:
            before.close()
        if closed:
            expected.close()

    def _is_hot(self) -> bool:
        """True when nothing must be read, nor asked for."""
        return not self._asks and all(use.info.in_memory for use in self.point.all_uses)

    def _hold(self, point: RestorePoint) -> None:
        """Take hold of the pages that are in memory, so that eviction cannot take them away."""
        filled = {} if self.targets is None else self.targets.filled
        held = held_pages(self.walk.source, point, self.arrived)
        found = {page: one for page, one in held.items() if page not in filled}
        with self._lock:
            if not self._closed:
                self.arrived = found

    def _end(self) -> None:
        with self._lock:
            self._state = _State.ENDED
            self._ended_at = self._ended_at or time.perf_counter()
            expected = self._expected
        if expected is not None:
            expected.close()
        self.ended.set()
        self.settled.set()


def _is_aside(page: PageId) -> bool:
    """True for windows and states: another restore point may want them in another order."""
    return page.group != PAGED.name
