"""What an open session holds beside the live cache: pages that the tiers had no room for yet, and
the window tokens that a ring is about to overwrite.

Neither can be cut later, when the live cache has moved on. They outlive neither commit nor the
session: leaving, aborting from another thread, or losing the last reference to the session frees
them, and the counters in `stats` with them.
"""

import threading
from collections import deque
from typing import NamedTuple

from omlx_cache.pages.geometry import Source
from omlx_cache_storage.page import Page
from omlx_cache_storage.stats import Counters


class Segment(NamedTuple):
    """Owned copies of a window group's tokens [start, stop)."""

    start: int
    stop: int
    source: Source


class Staging:
    """`_lock` guards `_closed`, `_pages` and `_segments`. `release` may come from any thread, but
    from no finalizer: that one hands it to `Counters.defer`."""

    def __init__(self, counters: Counters, limit_bytes: int) -> None:
        self._counters = counters
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._pages: list[Page] = []
        self._segments: dict[str, deque[Segment]] = {}

    @property
    def closed(self) -> bool:
        return self._closed

    def reserve(self, nbytes: int) -> bool:
        """Set bytes aside for what is about to be made; False when the budget is spent. Adding it
        must follow, or `give_back`."""
        return not self._closed and self._counters.take_snapshot(nbytes, self._limit)

    def give_back(self, nbytes: int) -> None:
        """Undo `reserve`."""
        self._counters.drop_snapshot(nbytes)

    def add_page(self, page: Page) -> None:
        """Keep a page whose bytes are reserved; one that comes after `release` is dropped."""
        with self._lock:
            if not self._closed:
                self._pages.append(page)
                return
        self.give_back(page.meta.nbytes)

    def take_pages(self) -> list[Page]:
        """Hand the pages over, shallow positions first."""
        with self._lock:
            pages, self._pages = self._pages, []
        for page in pages:
            self.give_back(page.meta.nbytes)
        return sorted(pages, key=lambda page: page.meta.position)

    def add_segment(self, group: str, segment: Segment) -> None:
        """Keep a segment whose bytes are reserved, behind those of its group."""
        with self._lock:
            if not self._closed:
                self._segments.setdefault(group, deque()).append(segment)
                return
        self.give_back(segment.source.nbytes)

    def segments(self, group: str) -> list[Segment]:
        """Return a group's segments, oldest first."""
        with self._lock:
            return list(self._segments.get(group, ()))

    def trim_segments(self, group: str, start: int, stop: int) -> None:
        """Drop a group's segments that end at or before `start`, or after `stop`."""
        with self._lock:
            kept: deque[Segment] = deque()
            dropped: list[Segment] = []
            for segment in self._segments.pop(group, ()):
                (kept if start < segment.stop <= stop else dropped).append(segment)
            self._segments[group] = kept
        for segment in dropped:
            self.give_back(segment.source.nbytes)

    def release(self) -> None:
        """Free everything; what is added later is dropped."""
        with self._lock:
            self._closed = True
            dropped = [segment for queue in self._segments.values() for segment in queue]
            self._segments.clear()
        for segment in dropped:
            self.give_back(segment.source.nbytes)
        self.take_pages()
