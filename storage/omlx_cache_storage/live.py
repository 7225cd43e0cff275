"""Which pages' tokens live sequences hold: memory need not hold those pages as well."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.page import PageId, PageInfo

REMEMBERED = 65_536
"""How many pages are known to be shared, at most: those that were found to be so first are
forgotten first."""


class Knows(Protocol):
    """A tier, asked about a page."""

    def info(self, page: PageId) -> PageInfo | None: ...


class LivePages:
    """Counts, for each page, the live sequences that hold its tokens and the requests that wait
    for it. A page that two of them had in common at once is shared from then on.

    `_lock` guards everything; it is held over no other. Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holding: Counter[PageId] = Counter()
        self._waiting: Counter[PageId] = Counter()
        self._shared: dict[PageId, None] = {}

    def is_spare(self, page: PageId) -> bool:
        """True when one live sequence holds a page's tokens, and nobody else asked for them."""
        with self._lock:
            return page in self._holding and page not in self._shared

    def is_wanted(self, page: PageId) -> bool:
        """True when others than the caller, who holds nothing of it yet, have use for a page."""
        with self._lock:
            return page in self._holding or page in self._shared

    def left(
        self, pages: Iterable[PageId], hot: Knows, cold: Knows, room_bytes: int
    ) -> list[PageId]:
        """Return those of a sequence's pages, root first, that are in `cold` and not in `hot`, as
        far as all of them have room there, without those that another live sequence holds."""
        found = []
        for page in pages:
            here, there = hot.info(page), cold.info(page)
            known = here or there
            room_bytes -= 0 if known is None else known.nbytes
            if room_bytes < 0:
                break
            if here is None and there is not None and not self.is_spare(page):
                found.append(page)
        return found

    def share(self, pages: Iterable[PageId]) -> None:
        """Note that pages are shared."""
        with self._lock:
            self._share(pages)

    def add(self, pages: Collection[PageId], *, waiting: bool) -> None:
        """Count one more that holds pages, or waits for them."""
        with self._lock:
            self._share([p for p in pages if p in self._holding or p in self._waiting])
            (self._waiting if waiting else self._holding).update(pages)

    def remove(self, pages: Iterable[PageId], *, waiting: bool) -> None:
        """Count one less; of pages that `add` counted."""
        with self._lock:
            counts = self._waiting if waiting else self._holding
            for page in pages:
                counts[page] -= 1
                if counts[page] <= 0:
                    del counts[page]

    def _share(self, pages: Iterable[PageId]) -> None:
        for page in pages:
            self._shared.pop(page, None)
            self._shared[page] = None
        while len(self._shared) > REMEMBERED:
            del self._shared[next(iter(self._shared))]


class LiveHold:
    """What one live sequence holds, or one request waits for, until `end`. Of a sequence what the
    disk has leaves memory, unless it is shared: at once, or when it is written.

    Use it on one thread, but `end`, which may come from any; it takes locks, so no finalizer calls
    it. `_lock` guards `_pages` and `_ended`.
    """

    def __init__(
        self, live: LivePages, let_go: Callable[[Iterable[PageId]], None], *, waiting: bool = False
    ) -> None:
        self._live = live
        self._let_go = let_go
        self._is_waiting = waiting
        self._lock = threading.Lock()
        self._pages: set[PageId] = set()
        self._ended = False

    @uninterrupted
    def add(self, pages: Iterable[PageId]) -> None:
        """Hold pages as well; without effect after `end`."""
        with self._lock:
            new = set() if self._ended else set(pages) - self._pages
            self._pages |= new
            self._live.add(new, waiting=self._is_waiting)
        if new and not self._is_waiting:
            self._let_go(new)

    @uninterrupted
    def end(self) -> None:
        """Hold nothing any more; any number of times."""
        with self._lock:
            pages, self._pages, self._ended = self._pages, set(), True
            self._live.remove(pages, waiting=self._is_waiting)
