"""What an open session holds beside the live cache: pages that the tiers had no room for yet, and
the window tokens that a ring is about to overwrite.

Neither can be cut later, when the live cache has moved on. They outlive neither commit nor the
session: leaving, aborting from another thread, or losing the last reference to the session frees
them, and the counters in `stats` with them.
"""

import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from omlx_cache.adapters.base import GroupSpec, TokenRange
from omlx_cache.pages.cut import Cutter
from omlx_cache.pages.geometry import Source, read_source
from omlx_cache.pages.layout import Layout
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


class WindowTrail:
    """Copies each window's tokens once, in small segments, and keeps those of the last window; and
    the order that its rings had where it looked.

    After a single-token step a ring holds exactly its window. A restore to one token before the end
    of the sequence, which an exact repeat needs, needs one token more.

    Mutable by the model's thread: `_reached`, `_phases`. The segments are the staging's.
    """

    def __init__(self, groups: Sequence[GroupSpec], staging: Staging, start: int) -> None:
        self._groups = groups
        self._staging = staging
        self._reached = start
        self._phases: dict[GroupSpec, dict[int, str]] = {group: {} for group in groups}

    def due_at(self, block_size: int) -> int:
        """Return the position at which a window is about to lose tokens that were not copied."""
        strides = [max(1, min(block_size, group.window - group.keep)) for group in self._groups]
        return self._reached + min(strides, default=sys.maxsize)

    def follow(self, layout: Layout, position: int) -> None:
        """Copy what windows that are at `position` gained since the last call; evaluates that."""
        for group in self._groups:
            first = max(0, position - (group.window - group.keep) - 1)
            self._staging.trim_segments(group.name, first, position)
            segments = self._staging.segments(group.name)
            last = max(first, segments[-1].stop) if segments else first
            if position > last:
                self._copy(layout, group, TokenRange(last, position))
            kept = {at: p for at, p in self._phases[group].items() if first < at < position}
            self._phases[group] = {**kept, position: layout.phases(group)}
        self._reached = position

    def phase(self, group: GroupSpec, position: int) -> str:
        """Return the rings' order at a position, as a page carries it; "" where it was not seen."""
        return self._phases[group].get(position, "")

    def sources(self, group: GroupSpec) -> list[Source]:
        """Return the copies of a group, oldest first."""
        return [segment.source for segment in self._staging.segments(group.name)]

    def _copy(self, layout: Layout, group: GroupSpec, span: TokenRange) -> None:
        cutter = Cutter([read_source(layout.of(group))])
        held = TokenRange(cutter.geometry.earliest(span), span.stop)
        cut = cutter.geometry.tokens(held) if len(held) else None
        if cut is None or not self._staging.reserve(cut.nbytes):
            return
        segment = Segment(held.start, held.stop, cutter.copies(held, cut))
        self._staging.add_segment(group.name, segment)
