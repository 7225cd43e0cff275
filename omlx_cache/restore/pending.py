"""A restore that was begun: its pages come in while other requests compute."""

import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from omlx_cache import reasons
from omlx_cache.arrays.mlxio import on_host
from omlx_cache.pages.layout import Layout, layout_of
from omlx_cache.restore.background import Reading
from omlx_cache.restore.device import join_on_device
from omlx_cache.restore.gate import RestoreGate
from omlx_cache.restore.host import HostTargets
from omlx_cache.restore.lookup import RestorePoint
from omlx_cache.restore.plan import PageFailed, Plan
from omlx_cache.restore.queue import STUCK_SECONDS, RestoreQueue
from omlx_cache.restore.run import (
    MEMORY_PASSES,
    Restored,
    fill_from,
    mark_known,
    rebuild,
    restore,
)
from omlx_cache.restore.source import InMemory, PageSource
from omlx_cache.restore.walk import Walk, plan_for
from omlx_cache_storage.interrupts import uninterrupted, wait_in_turns
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import COLD, REMOTE

_log = logging.getLogger(__name__)


class Taken(NamedTuple):
    """Live caches at `point.position` (fresh ones at 0), and how many tokens the disk gave, and
    other machines; the first `local_tokens` were on this one."""

    prompt_cache: list[Any]
    layout: Layout
    point: RestorePoint
    cold_tokens: int
    remote_tokens: int = 0
    local_tokens: int = 0


class PendingRestore:
    """A request's prefix on its way into buffers of its own; made by any thread, at once.

    Nothing raises for what a disk, a page or a deadline does. `start` begins to read, `ready` says
    when `take` would not wait for a disk, and `cancel` gives the memory back; a handle that is
    lost does so too. One thread takes it, once; `cancel` may come from any, any number of times.
    Until then the chain belongs to it. Counts no miss: the point's reason is the taker's to count.
    A `gate` says whether it reads, and is told what that took.
    """

    def __init__(
        self,
        queue: RestoreQueue,
        source: PageSource,
        fresh: Callable[[], list[Any]],
        chain: KeyChain,
        *,
        limit: int,
        capacity: int,
        known: frozenset[int] = frozenset(),
        stamp: int | None = None,
        gate: RestoreGate | None = None,
    ) -> None:
        self._queue = queue
        self._source = source
        self._fresh = fresh
        self._chain = chain
        self._limit = limit
        self._capacity = capacity
        self._known = known
        self._stamp = stamp
        self._gate = gate
        self._caches: list[Any] = []
        self._looked: tuple[list[Any], Reading] | None = None
        self._reading: Reading | None = None
        self._finalizer: weakref.finalize[[Reading], PendingRestore] | None = None

    @uninterrupted
    def look(self, stamp: int | None = None) -> int:
        """Return how many tokens can be restored now, to be used at `stamp`. Reads and holds
        nothing; what was started before goes on."""
        self._stamp = stamp if stamp is not None else self._stamp
        self._looked = self._new_reading()
        _caches, reading = self._looked
        return reading.point.position

    @uninterrupted
    def start(self) -> None:
        """Let the reading begin when its turn comes, of what `look` found; returns at once.

        Reads no payload and waits for no disk. Without effect while it is started.
        """
        if self._reading is not None:
            return
        self._caches, reading = self._looked or self._new_reading()
        self._looked, self._reading = None, reading
        # A finalizer may run while any lock is held, so it takes none: the queue looks here later.
        self._finalizer = weakref.finalize(self, self._queue.lost.append, reading)
        self._finalizer.atexit = False
        self._queue.add(reading)

    @property
    def started(self) -> bool:
        return self._reading is not None

    @property
    def ready(self) -> bool:
        """True when `take` will not wait for a disk; cheap, and takes no lock that I/O holds."""
        if self._queue.lost:
            self._queue.settle()
        reading = self._reading
        return reading is not None and reading.admitted and reading.ended.is_set()

    @uninterrupted
    def wait(self, timeout: float | None = None) -> bool:
        """Block until `ready`, for `timeout` seconds at most; False at once if it never will be."""
        reading = self._reading
        return reading is not None and wait_in_turns(reading.settled.wait, timeout) and self.ready

    @property
    def oversize(self) -> bool:
        """True when it is larger than the queue may ever hold: nothing is read ahead, and `take`
        reads on the spot."""
        reading = self._reading
        return reading is not None and reading.oversize

    @uninterrupted
    def cancel(self) -> None:
        """Read no more and give the memory back. A later `take` restores on the spot."""
        reading, self._reading = self._reading, None
        if reading is not None:
            self._let_go()
            self._queue.drop(reading)

    @uninterrupted
    def take(self, deadline: float | None = None) -> Taken:
        """Return caches restored as far as the pages have come, after `deadline` seconds at most.

        On the model's thread; evaluates MLX. None waits for all of it. What has not come by then is
        left to be computed (reason `deadline`): of windows and states only what is in memory is
        used, so that nothing waits for a disk again.
        """
        try:
            taken = self._take(deadline)
            mark_known(self._source, taken.layout, self._chain, taken.point, self._stamp)
            reason = taken.point.reason or ""
            if self._gate is not None and reason.startswith(reasons.SLOWER_THAN_COMPUTING):
                self._gate.rejected()
            return taken
        except Exception as error:
            _log.exception("restore failed, the request is computed in full")
            caches = self._fresh()
            reason = f"{reasons.ERROR}:{type(error).__name__}"
            return Taken(caches, layout_of(caches), RestorePoint(0, {}, reason, 0), 0)
        finally:
            self.cancel()

    def _take(self, deadline: float | None) -> Taken:
        began = time.monotonic()
        reading = self._reading
        if deadline is None and (reading is None or not reading.admitted):
            self.cancel()
            return self._on_the_spot()
        if reading is None:
            self._caches, reading = self._new_reading()
        caches, layout = self._caches, reading.walk.layout
        self._queue.take(reading)
        try:
            until = None if deadline is None else began + deadline
            came = self._wait_for(reading, until)
            if not came:
                reading.close()
            finishing = time.perf_counter()
            restored = _finish(reading, came=came)
            return self._taken(caches, layout, restored, finishing - reading.seconds)
        finally:
            self._queue.drop(reading)

    def _wait_for(self, reading: Reading, until: float | None) -> bool:
        """Wait for a reading's end; the queue replaces the threads that hang meanwhile. One half of
        the time is for reading what is here, when other machines say nothing."""
        now = time.monotonic()
        half = None if until is None else (now + until) / 2
        while True:
            left = STUCK_SECONDS if until is None else until - now
            first = left if half is None else half - now
            if wait_in_turns(reading.ended.wait, max(0.0, min(left, first, STUCK_SECONDS))):
                return True
            now = time.monotonic()
            if until is not None and now >= until:
                return False
            if half is not None and now >= half:
                half = None
                reading.ask_no_more()
            self._queue.wake()

    def _on_the_spot(self) -> Taken:
        began = time.perf_counter()
        caches = self._fresh()
        layout = layout_of(caches)
        restored = restore(
            self._source,
            layout,
            self._chain,
            limit=self._limit,
            capacity=self._capacity,
            known=self._known,
            stamp=self._stamp,
            gate=self._gate,
        )
        return self._taken(caches, layout, restored, began)

    def _taken(self, caches: list[Any], layout: Layout, restored: Restored, began: float) -> Taken:
        """Return what was restored, and tell the gate what it took from `began` to now."""
        if self._gate is not None:
            seconds = time.perf_counter() - began
            read = {COLD: restored.cold_bytes, REMOTE: restored.remote_bytes}
            self._gate.took(restored.nbytes, seconds, read)
        return Taken(
            caches,
            layout,
            restored.point,
            restored.cold_tokens,
            restored.remote_tokens,
            restored.local_tokens,
        )

    def _new_reading(self) -> tuple[list[Any], Reading]:
        caches = self._fresh()
        layout = layout_of(caches)
        walk = Walk(
            self._source,
            layout,
            self._chain,
            self._limit,
            self._capacity,
            self._known,
            self._stamp,
            self._gate,
        )
        return caches, Reading(walk)

    def _let_go(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()


def _finish(reading: Reading, *, came: bool) -> Restored:
    """Restore what a closed reading has brought, and what else is in memory; reads nothing."""
    walk = reading.walk.copy()
    wanted = reading.point
    for _attempt in range(MEMORY_PASSES):
        filled = {} if reading.targets is None else reading.targets.filled
        memory = InMemory(walk.source, reading.arrived, filled)
        point = walk.find(memory)
        if came and point.position == wanted.position:
            # The walk in memory knows less of what lies beyond.
            point = replace(
                point,
                reason=wanted.reason,
                matched=wanted.matched,
                wanted_state=wanted.wanted_state,
                lacking=wanted.lacking,
            )
        elif point.position < wanted.position and not came:
            point = replace(point, reason=reasons.DEADLINE)
        if not point.position:
            return Restored(point, 0)
        try:
            plan = _same_plan(reading.plan, point)
            if plan is None:
                plan = plan_for(walk, point, memory.pages, disk=False)
            if on_host():
                targets = reading.targets
                # Past the deadline the reading's own were closed, whatever is left to go in.
                if targets is None or targets.plan is not plan or not came:
                    targets = reading.targets = HostTargets(plan, before=targets)
                left = [read for read in plan.reads if read.use.page not in targets.filled]
                fill_from(walk.source, targets, left, memory.pages)
                arrays = targets.arrays()
            else:
                arrays = join_on_device(plan, memory.pages)
        except PageFailed as failed:
            walk.learn(failed, point, memory.pages, disk=False)
            continue
        return rebuild(walk, point, plan, arrays, reading.read)
    return Restored(RestorePoint(0, {}, walk.failure, 0), 0)


def _same_plan(plan: Plan | None, point: RestorePoint) -> Plan | None:
    """Return a plan that was made while reading if it restores just this point."""
    if plan is None or plan.position != point.position:
        return None
    wanted = {use.page for use in point.all_uses}
    return plan if wanted == {read.use.page for read in plan.reads} else None
