"""What the cold tier knows of its files without touching the disk: index, order and bytes."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from omlx_cache_storage.cold.records import StoredPage
from omlx_cache_storage.format.names import PARENT_HINT_BYTES
from omlx_cache_storage.index import PageIndex
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PAGED, PageId, Tail
from omlx_cache_storage.recency import SUPERSEDED_NS, ChainRecency, Place


class Candidate(NamedTuple):
    """A page that wants room: its id, where it ends and when it was used."""

    page: PageId
    position: int
    stamp_ns: int

    @property
    def rank(self) -> tuple[int, int]:
        """Where it would stand in the eviction order; the smallest leaves first."""
        return self.stamp_ns, -self.position


class Victims(NamedTuple):
    """Pages whose eviction makes room. `enough` is False when it does not, and `outranked` tells
    whether a page that is worth more than the candidate stood in the way."""

    pages: list[PageId]
    enough: bool
    outranked: bool = False


class Snapshot(NamedTuple):
    """A copy of the contents, unsorted: cheap to take under a lock, to be worked on outside."""

    stored: Sequence[tuple[PageId, StoredPage]]
    places: Sequence[Place]


class Contents:
    """Indexes page files and orders them for eviction. Not thread-safe: its owner's lock guards it.

    An undecodable page keeps its bytes and its place in the order, and is hidden from look-ups.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._index: PageIndex[StoredPage] = PageIndex()
        self._order = ChainRecency()
        self._undecodable: set[PageId] = set()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def undecodable(self) -> int:
        return len(self._undecodable)

    def pages(self) -> set[PageId]:
        return set(self._index)

    def fill(self, files: Iterable[tuple[StoredPage, int]]) -> None:
        """Take many files at once, each with its stamp, into empty contents."""
        found = rooted(files)
        for stored, _ in found:
            self._index.put(stored.name.id, stored)
        self._order.fill((s.name.id, s.position, stamp_ns) for s, stamp_ns in found)
        self.nbytes = sum(stored.cost for stored, _ in found)

    def add(self, stored: StoredPage, stamp_ns: int) -> None:
        """Take a page that is not here."""
        self._index.put(stored.name.id, stored)
        self._order.add(stored.name.id, stored.position, stamp_ns)
        self.nbytes += stored.cost

    def pop(self, page: PageId) -> StoredPage | None:
        stored = self._index.pop(page)
        if stored is not None:
            self._order.discard(page)
            self._undecodable.discard(page)
            self.nbytes -= stored.cost
        return stored

    def get(self, page: PageId) -> StoredPage | None:
        """Return a page that this process can use, as far as it knows."""
        return None if page in self._undecodable else self._index.get(page)

    def stored(self, page: PageId) -> StoredPage | None:
        """Return a page, whether it can be used or not."""
        return self._index.get(page)

    def is_undecodable(self, page: PageId) -> bool:
        return page in self._undecodable

    def quarantine(self, page: PageId) -> None:
        """Hide a page that cannot be decoded here."""
        if page in self._index:
            self._undecodable.add(page)

    def get_all(self, pages: Iterable[PageId]) -> list[StoredPage | None]:
        """`get` for many pages."""
        return list(map(self.get, pages)) if self._undecodable else self._index.get_all(pages)

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        return self._index.tails_of(parents)

    def touch(self, chain: Iterable[PageId], stamp_ns: int, since_ns: int = 0) -> list[PageId]:
        """Mark pages as used at a stamp, but those used later than that and than `since_ns`; return
        those that are marked."""
        order, latest = self._order, max(stamp_ns, since_ns)
        older = [page for page in chain if page in order and order.stamp(page) <= latest]
        return order.touch(older, stamp_ns)

    def place(self, pages: Iterable[PageId], stamp_ns: int) -> list[PageId]:
        """Put pages at a stamp, whenever they were used; return those that are here."""
        return self._order.touch(pages, stamp_ns)

    def stamp(self, page: PageId) -> int:
        """Return when a page was used; raises KeyError."""
        return self._order.stamp(page)

    def victims(
        self,
        excess: int,
        candidate: Candidate | None = None,
        is_pinned: Callable[[PageId], bool] = lambda page: False,
    ) -> Victims:
        """Choose pages to evict for `excess` bytes, the first in the order first.

        For a candidate only pages that are worth less are chosen, none that is pinned, and its own
        earlier version: a chain's deep end never drives out its root.
        """
        pages: list[PageId] = []
        if excess <= 0 or excess > self.nbytes:
            return Victims(pages, excess <= 0)
        outranked = False

        def take(page: PageId) -> bool:
            nonlocal excess, outranked
            stored = self._index.get(page)
            if stored is None:
                return True
            if candidate is not None and page != candidate.page:
                outranked = not self._order.leaves_before(page, *candidate[1:]) or is_pinned(page)
            if not outranked:
                pages.append(page)
                excess -= stored.cost
            return excess > 0 and not outranked

        self._order.visit(take)
        return Victims(pages, excess <= 0, outranked)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._index.items(), self._order.places())


def rooted(files: Iterable[tuple[StoredPage, int]]) -> list[tuple[StoredPage, int]]:
    """Return the files with their stamps, no page's earlier than those of the pages behind it.

    A process that was killed had not recorded that a chain was used again: its new deep end would
    outlive its root.
    """
    found = list(files)
    behind: dict[bytes, int] = {}
    for stored, stamp_ns in found:
        hint = stored.name.parent_hint
        if stamp_ns > behind.get(hint, 0):
            behind[hint] = stamp_ns
    if all(stamp_ns >= behind.get(_hint(stored), 0) for stored, stamp_ns in found):
        return found
    found.sort(key=lambda file: -file[0].name.position)
    for at, (stored, stamp_ns) in enumerate(found):
        raised = stamp_ns
        if stamp_ns > SUPERSEDED_NS:
            raised = max(stamp_ns, behind.get(_hint(stored), 0))
        hint = stored.name.parent_hint
        behind[hint] = max(raised, behind.get(hint, 0))
        found[at] = stored, raised
    return found


def _hint(stored: StoredPage) -> bytes:
    """Return what names the pages behind a page: nothing does if it is of use by itself."""
    key, group = stored.name.id
    return key[:PARENT_HINT_BYTES] if group == PAGED else b""
