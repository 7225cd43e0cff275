"""A restore that was begun: its pages come in while other requests compute."""

import logging
import time
import weakref
from collections.abc import Callable

from omlx_cache import reasons
from omlx_cache.restore.lookup import RestorePoint
from omlx_cache.restore.queue import Ahead, RestoreQueue
from omlx_cache.restore.reading import Reading, Restored, mark_known, restore
from omlx_cache.restore.walk import Walk
from omlx_cache_storage.interrupts import uninterrupted, wait_in_turns
from omlx_cache_storage.page import COLD, REMOTE

_log = logging.getLogger(__name__)


class PendingRestore:
    """A request's prefix on its way into buffers of its own; made by any thread, at once.

    Nothing raises for what a disk, a page or a deadline does. `start` begins to read, `ready` says
    when `take` would not wait for a disk, and `cancel` gives the memory back; a handle that is
    lost does so too. One thread takes it, once; `cancel` may come from any, any number of times.
    Until then the chain of `new_walk`, which is asked for fresh caches each time, belongs to it.
    Counts no miss: the point's reason is the taker's to count.
    """

    def __init__(
        self,
        queue: RestoreQueue,
        new_walk: Callable[[int | None], Walk],
        stamp: int | None = None,
    ) -> None:
        self._queue = queue
        self._new_walk = new_walk
        self._stamp = stamp
        self._looked: Ahead | None = None
        self._ahead: Ahead | None = None
        self._finalizer: weakref.finalize[[Ahead], PendingRestore] | None = None

    @uninterrupted
    def look(self, stamp: int | None = None) -> int:
        """Return how many tokens can be restored now, to be used at `stamp`. Reads and holds
        nothing; what was started before goes on."""
        self._stamp = stamp if stamp is not None else self._stamp
        self._looked = self._new()
        return self._looked.position

    @uninterrupted
    def start(self) -> None:
        """Let the reading begin when its turn comes, of what `look` found; returns at once.

        Reads no payload and waits for no disk. Without effect while it is started.
        """
        if self._ahead is None:
            self._ahead, self._looked = self._looked or self._new(), None
            # A finalizer may run while any lock is held, so it takes none: the queue looks here
            # later.
            self._finalizer = weakref.finalize(self, self._queue.lost.append, self._ahead)
            self._finalizer.atexit = False
            self._queue.add(self._ahead)

    @property
    def started(self) -> bool:
        return self._ahead is not None

    @property
    def ready(self) -> bool:
        """True when `take` will not wait for a disk; cheap, and takes no lock that I/O holds."""
        if self._queue.lost:
            self._queue.settle()
        ahead = self._ahead
        return ahead is not None and ahead.admitted and ahead.ended.is_set()

    @uninterrupted
    def wait(self, timeout: float | None = None) -> bool:
        """Block until `ready`, for `timeout` seconds at most; False at once if it never will be."""
        ahead = self._ahead
        return ahead is not None and wait_in_turns(ahead.ended.wait, timeout) and self.ready

    @property
    def oversize(self) -> bool:
        """True when it is larger than the queue may ever hold: nothing is read ahead, and `take`
        reads on the spot."""
        return self._ahead is not None and self._ahead.oversize

    @uninterrupted
    def cancel(self) -> None:
        """Read no more and give the memory back. A later `take` restores on the spot."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if self._finalizer is not None:
                self._finalizer.detach()
            self._queue.drop(ahead)

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
            return Restored(self._new_walk(None).prompt_cache, RestorePoint(0, {}, reason, 0))
        finally:
            self.cancel()

    def _take(self, deadline: float | None) -> Restored:
        ahead = self._ahead
        if deadline is None and (ahead is None or not ahead.admitted):
            self.cancel()
            starting = time.perf_counter()
            return _finish(Reading(self._new_walk(self._stamp)), starting)
        if ahead is None or ahead.oversize:
            ahead = self._new()
        until = None if deadline is None else time.monotonic() + deadline
        self._queue.take(ahead)
        try:
            # One half of the time is for reading what is here, when other machines say nothing.
            if deadline is not None and not _wait(ahead, deadline / 2) and ahead.is_asking:
                self._queue.drop(ahead)
                ahead = Ahead(self._queue, self._new_walk(self._stamp), asks=False)
                self._queue.take(ahead)
            _wait(ahead, None if until is None else max(0.0, until - time.monotonic()))
            came = ahead.ended.is_set() and not ahead.reading.closed
            finishing = time.perf_counter()
            ahead.reading.closed |= not came
            reading = Reading(ahead.reading.walk if came else self._new_walk(self._stamp))
            reading.take_over(ahead.reading, late=not came)
            return _finish(reading, finishing - ahead.seconds)
        finally:
            self._queue.drop(ahead)

    def _new(self) -> Ahead:
        return Ahead(self._queue, self._new_walk(self._stamp))


def _wait(ahead: Ahead, timeout: float | None) -> bool:
    return wait_in_turns(ahead.ended.wait, timeout)


def _finish(reading: Reading, began: float) -> Restored:
    """Restore, and tell the gate what that took from `began` to now."""
    walk, restored = reading.walk, restore(reading)
    if walk.gate is not None:
        read = {COLD: restored.cold_bytes, REMOTE: restored.remote_bytes}
        walk.gate.took(restored.nbytes, time.perf_counter() - began, read)
        if (restored.point.reason or "").startswith(reasons.SLOWER_THAN_COMPUTING):
            walk.gate.rejected()
    mark_known(walk, restored.point)
    return restored
