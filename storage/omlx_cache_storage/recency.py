"""The eviction order: least recently used, a chain's deep end before its root.

A page is useless without the pages before it, so the pages of one touch share one stamp, and of
equal stamps the deepest leaves first. The same two numbers are in a page file's modification time
and name: a restart finds the same order. Measured on coding-agent traces this lifts the hit rate
from 0.514 to 0.683 at equal capacity (docs/design.md).
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from omlx_cache_storage.page import PageId

SUPERSEDED_NS = 1_000_000_000
"""Stamps up to this one, a second after the epoch, mark superseded pages: the first to leave."""


class Clock:
    """Stamps in nanoseconds of the wall clock, each later than all before; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._demotions = itertools.count()

    def now(self) -> int:
        """Return a stamp for pages used now. A wall clock that is set back does not disturb."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns())
            return self._last

    def elapsed_ns(self) -> int:
        """Return a time by which to measure how long something takes: nobody sets it."""
        return time.monotonic_ns()

    def superseded(self) -> int:
        """Return a stamp before every other, for pages that shall leave first."""
        return SUPERSEDED_NS - next(self._demotions)


def age_seconds(stamp_ns: int, now_ns: int | None = None) -> float | None:
    """Return how long ago a page was used; None for a superseded one."""
    if stamp_ns <= SUPERSEDED_NS:
        return None
    return max(0.0, ((time.time_ns() if now_ns is None else now_ns) - stamp_ns) / 1e9)


class Place(NamedTuple):
    """Where a page stands; the smallest leaves first."""

    stamp_ns: int
    depth: int
    page: PageId


class ChainRecency:
    """An order over page ids. Not thread-safe: its owner's lock guards it."""

    def __init__(self) -> None:
        self._places: dict[PageId, Place] = {}
        # Places that a page has left stay in the heap until they come up or outnumber the others.
        self._heap: list[Place] = []

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, page: PageId) -> bool:
        return page in self._places

    def add(self, page: PageId, position: int, stamp_ns: int) -> None:
        """Take a page that ends at `position` and was used at `stamp_ns`."""
        self._move(Place(stamp_ns, -position, page))

    def fill(self, pages: Iterable[tuple[PageId, int, int]]) -> None:
        """Take many pages at once, each with its position and stamp, into an empty order."""
        self._heap = [Place(stamp_ns, -position, page) for page, position, stamp_ns in pages]
        self._places = {place.page: place for place in self._heap}
        heapq.heapify(self._heap)

    def touch(self, pages: Iterable[PageId], stamp_ns: int) -> list[PageId]:
        """Mark pages as used at `stamp_ns`; return those that are held."""
        held = [page for page in pages if page in self._places]
        for page in held:
            self._move(Place(stamp_ns, self._places[page].depth, page))
        return held

    def discard(self, page: PageId) -> None:
        self._places.pop(page, None)

    def places(self) -> list[Place]:
        """Return where each page stands: a copy, in no order, made without sorting.

        Sorted, the first to be evicted comes first.
        """
        return list(self._places.values())

    def stamp(self, page: PageId) -> int:
        """Return when a page was used; raises KeyError."""
        return self._places[page].stamp_ns

    def leaves_before(self, page: PageId, position: int, stamp_ns: int) -> bool:
        """True when a page is worth less than one that ends at `position` and was used then."""
        return self._places[page][:2] < (stamp_ns, -position)

    def visit(self, visitor: Callable[[PageId], bool]) -> None:
        """Show pages, the first to be evicted first, until `visitor` returns False.

        `visitor` must not change the order. Costs O(log n) a page shown.
        """
        shown: list[Place] = []
        try:
            while self._heap:
                place = heapq.heappop(self._heap)
                if self._places.get(place.page) != place or (shown and shown[-1] == place):
                    continue
                shown.append(place)
                if not visitor(place.page):
                    return
        finally:
            for place in shown:
                heapq.heappush(self._heap, place)

    def ordered(self) -> list[PageId]:
        """Return all pages, the first to be evicted first."""
        return [place.page for place in sorted(self._places.values())]

    def _move(self, place: Place) -> None:
        if self._places.get(place.page) == place:
            return
        self._places[place.page] = place
        heapq.heappush(self._heap, place)
        if len(self._heap) > 2 * len(self._places) + 64:
            self._heap = list(self._places.values())
            heapq.heapify(self._heap)
