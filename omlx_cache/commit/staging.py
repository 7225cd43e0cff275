"""What an open session has captured and not yet handed over: snapshots and window segments.

It outlives neither commit nor the session: leaving, aborting from another thread, or losing the
last reference to the session frees it, and the counters in `stats` with it.
"""

import threading
from collections import deque
from dataclasses import dataclass

from omlx_cache.pages.cut import Source
from omlx_cache_storage.page import Page
from omlx_cache_storage.stats import Counters


@dataclass(frozen=True, slots=True)
class Segment:
    """Owned copies of a window group's tokens [start, stop).

    `phase` is the JSON text of the rings' order when the cache was at `stop`, "" when temporal.
    """

    start: int
    stop: int
    source: Source
    phase: str = ""


class Staging:
    """Mutable: the fields below `_lock`, which guards them. `release` may come from any thread."""

    def __init__(self, counters: Counters, limit_bytes: int) -> None:
        self._counters = counters
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._snapshots: dict[int, Page] = {}
        self._segments: dict[str, deque[Segment]] = {}

    @property
    def closed(self) -> bool:
        return self._closed

    def add_snapshot(self, page: Page) -> bool:
        """Keep a state page; False when the budget is spent, even after older segments went."""
        nbytes = page.meta.nbytes
        with self._lock:
            if self._closed or page.meta.position in self._snapshots:
                return False
            if not self._take(nbytes):
                return False
            self._snapshots[page.meta.position] = page
            return True

    def add_segment(self, group: str, segment: Segment) -> bool:
        """Keep a window segment, dropping the group's oldest ones when the budget is spent."""
        with self._lock:
            if self._closed or not self._take(segment.source.nbytes):
                return False
            self._segments.setdefault(group, deque()).append(segment)
            return True

    def has_snapshot(self, position: int) -> bool:
        with self._lock:
            return position in self._snapshots

    def segments(self, group: str) -> list[Segment]:
        """Return a group's segments, oldest first."""
        with self._lock:
            return list(self._segments.get(group, ()))

    def forget_after(self, position: int) -> None:
        """Drop what was captured beyond a position: the sequence was trimmed to it."""
        with self._lock:
            for end in [end for end in self._snapshots if end > position]:
                self._give(self._snapshots.pop(end).meta.nbytes)
            for queue in self._segments.values():
                while queue and queue[-1].stop > position:
                    self._give(queue.pop().source.nbytes)

    def take_snapshots(self) -> list[Page]:
        """Hand the snapshots over, shallow positions first."""
        with self._lock:
            pages = [self._snapshots.pop(position) for position in sorted(self._snapshots)]
            for page in pages:
                self._give(page.meta.nbytes)
            return pages

    def release(self) -> None:
        """Free everything; what is added later is refused."""
        with self._lock:
            self._closed = True
            for page in self._snapshots.values():
                self._give(page.meta.nbytes)
            for queue in self._segments.values():
                for segment in queue:
                    self._give(segment.source.nbytes)
            self._snapshots.clear()
            self._segments.clear()

    def _take(self, nbytes: int) -> bool:
        while not self._counters.take_snapshot(nbytes, self._limit):
            oldest = min(
                (queue for queue in self._segments.values() if queue),
                key=lambda queue: queue[0].stop,
                default=None,
            )
            if oldest is None:
                return False
            self._give(oldest.popleft().source.nbytes)
        return True

    def _give(self, nbytes: int) -> None:
        self._counters.drop_snapshot(nbytes)
