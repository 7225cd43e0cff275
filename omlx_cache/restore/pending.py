"""A restore that was begun: its pages come in while other requests compute."""

import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from omlx_cache import reasons
from omlx_cache.arrays.mlxio import on_host
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
        self._looked: Reading | None = None
        self._reading: Reading | None = None
        self._finalizer: weakref.finalize[[Reading], PendingRestore] | None = None

    @uninterrupted
    def look(self, stamp: int | None = None) -> int:
        """Return how many tokens can be restored now, to be used at `stamp`. Reads and holds
        nothing; what was started before goes on."""
        self._stamp = stamp if stamp is not None else self._stamp
        self._looked = Reading(self._new_walk())
        return self._looked.point.position

    @uninterrupted
    def start(self) -> None:
        """Let the reading begin when its turn comes, of what `look` found; returns at once.

        Reads no payload and waits for no disk. Without effect while it is started.
        """
        if self._reading is not None:
            return
        reading = self._looked or Reading(self._new_walk())
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
            if self._finalizer is not None:
                self._finalizer.detach()
            self._queue.drop(reading)

    @uninterrupted
    def take(self, deadline: float | None = None) -> Restored:
        """Return caches restored as far as the pages have come, after `deadline` seconds at most.

        On the model's thread; evaluates MLX. None waits for all of it. What has not come by then is
        left to be computed (reason `deadline`): of windows and states only what is in memory is
        used, so that nothing waits for a disk again.
        """
        try:
            return self._take(deadline)
        except Exception as error:
            _log.exception("restore failed, the request is computed in full")
            reason = f"{reasons.ERROR}:{type(error).__name__}"
            return Restored(self._fresh(), RestorePoint(0, {}, reason, 0))
        finally:
            self.cancel()

    def _take(self, deadline: float | None) -> Restored:
        began = time.monotonic()
        reading = self._reading
        if deadline is None and (reading is None or not reading.admitted):
            self.cancel()
            starting, walk = time.perf_counter(), self._new_walk()
            return self._noted(walk, restore(walk), starting)
        if reading is None:
            reading = Reading(self._new_walk())
        self._queue.take(reading)
        try:
            until = None if deadline is None else began + deadline
            came = self._wait_for(reading, until)
            if not came:
                reading.close()
            finishing = time.perf_counter()
            restored = _finish(reading, came=came)
            return self._noted(reading.walk, restored, finishing - reading.seconds)
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

    def _noted(self, walk: Walk, restored: Restored, began: float) -> Restored:
        """Return what was restored, and tell the gate what it took from `began` to now."""
        if self._gate is not None:
            seconds = time.perf_counter() - began
            read = {COLD: restored.cold_bytes, REMOTE: restored.remote_bytes}
            self._gate.took(restored.nbytes, seconds, read)
            if (restored.point.reason or "").startswith(reasons.SLOWER_THAN_COMPUTING):
                self._gate.rejected()
        mark_known(walk, restored.point)
        return restored

    def _new_walk(self) -> Walk:
        return Walk(
            self._source,
            self._fresh(),
            self._chain,
            self._limit,
            self._capacity,
            self._known,
            self._stamp,
            self._gate,
        )


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
            return Restored(walk.prompt_cache, point)
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
    return Restored(walk.prompt_cache, RestorePoint(0, {}, walk.failure, 0))


def _same_plan(plan: Plan | None, point: RestorePoint) -> Plan | None:
    """Return a plan that was made while reading if it restores just this point."""
    if plan is None or plan.position != point.position:
        return None
    wanted = {use.page for use in point.all_uses}
    return plan if wanted == {read.use.page for read in plan.reads} else None
