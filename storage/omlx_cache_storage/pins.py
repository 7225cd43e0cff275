"""Pins: pages that a tier does not evict until a time, within a share of its bytes."""

from collections.abc import Collection, Iterable, Sequence

from omlx_cache_storage.page import PageId

SHARE = 2
"""Pins take one part in so many of a tier's bytes, so that the rest goes on as a cache."""


class Pins:
    """What is to stay in one tier, and what of it is here. Not thread-safe: its owner's lock guards
    it.

    A page may be in several pins; it stays until the last of them ends. `_wanted` has each page's
    end, `_here` the bytes of those that are pinned. What ended is forgotten when the next pin
    begins, or one of them wants the room.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._pins: dict[int, tuple[Collection[PageId], int]] = {}
        self._wanted: dict[PageId, int] = {}
        self._here: dict[PageId, int] = {}

    def __bool__(self) -> bool:
        """True when anything was pinned, and not unpinned."""
        return bool(self._pins)

    def add(self, number: int, pages: Sequence[PageId], until_ns: int, now_ns: int) -> None:
        """Begin a pin; each of its pages is pinned by `hold`."""
        self._expire(now_ns)
        self._pins[number] = pages, until_ns
        for page in pages:
            self._wanted[page] = max(until_ns, self._wanted.get(page, 0))

    def remove(self, number: int) -> dict[PageId, int]:
        """End a pin; return those of its pages that were pinned, with the time until which another
        pin keeps them, 0 without one."""
        pages, _until = self._pins.pop(number, ((), 0))
        left = dict.fromkeys((page for page in pages if page in self._wanted), 0)
        for others, until_ns in self._pins.values():
            for page in left.keys() & set(others):
                left[page] = max(left[page], until_ns)
        for page, until_ns in left.items():
            if until_ns:
                self._wanted[page] = until_ns
            else:
                del self._wanted[page]
        freed = {page: until_ns for page, until_ns in left.items() if page in self._here}
        for page, until_ns in freed.items():
            if not until_ns:
                self.left(page)
        return freed

    def hold(self, page: PageId, nbytes: int, limit_bytes: int, now_ns: int) -> int:
        """Pin a page that is here, if a pin wants it and all together stay within their share of
        the limit; return until when, 0 for one that is not pinned."""
        until_ns = self._wanted.get(page, 0)
        if until_ns <= now_ns:
            return 0
        more = nbytes - self._here.get(page, 0)
        if (self.nbytes + more) * SHARE > limit_bytes:
            self._expire(now_ns)
            if (self.nbytes + more) * SHARE > limit_bytes:
                return 0
        self._here[page] = nbytes
        self.nbytes += more
        return until_ns

    def left(self, page: PageId) -> None:
        """Note that a page went, whatever the reason; it is pinned again if it comes back."""
        self.nbytes -= self._here.pop(page, 0)

    def all_left(self) -> None:
        """Note that every page went."""
        self._here.clear()
        self.nbytes = 0

    @property
    def pages(self) -> list[PageId]:
        """All that pins want, those of one pin in its order."""
        return list(self._wanted)

    def holds(self, page: PageId, now_ns: int) -> bool:
        """True for a page that is not to be evicted now."""
        return page in self._here and self._wanted.get(page, 0) > now_ns

    def wants(self, page: PageId, now_ns: int) -> bool:
        """True for a page of a pin, whether it has room here or not."""
        return self._wanted.get(page, 0) > now_ns

    def loose(self, pages: Iterable[PageId], now_ns: int) -> list[PageId]:
        """Return the pages that are not pinned."""
        return [page for page in pages if not self.holds(page, now_ns)]

    def _expire(self, now_ns: int) -> None:
        if all(until_ns > now_ns for _, until_ns in self._pins.values()):
            return
        for number in [n for n, (_, until_ns) in self._pins.items() if until_ns <= now_ns]:
            del self._pins[number]
        for page in [page for page, until_ns in self._wanted.items() if until_ns <= now_ns]:
            del self._wanted[page]
            self.left(page)
