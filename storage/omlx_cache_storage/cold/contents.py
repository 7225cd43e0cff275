"""The cold tier's knowledge of its files, without touching the disk: index, order and bytes."""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, Keep
from omlx_cache_storage.eviction.order import OrderedPages, Record
from omlx_cache_storage.format.names import ENTRY_BYTES, PARENT_HINT_BYTES, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PAGED, PageId


class PageFile(Record):
    """A page's file: one that takes another's name is a different record. `recorded_ns` is the time
    that this process gave the file last, 0 if it gave none. `undecodable`: it is hidden from
    lookups; `Contents` alone changes that."""

    __slots__ = ("recorded_ns", "undecodable")

    def __init__(self, stored: StoredPage) -> None:
        super().__init__(stored)
        self.recorded_ns = 0
        self.undecodable = False

    @property
    def cost(self) -> int:
        return self.nbytes + ENTRY_BYTES


class Candidate(NamedTuple):
    page: PageId
    position: int
    stamp_ns: int

    @property
    def rank(self) -> tuple[int, int]:
        return self.stamp_ns, -self.position


class Victims(NamedTuple):
    """Pages whose eviction makes room. `enough` is False when it does not; `outranked`: a page of
    more worth than the candidate stood in the way. When that is so only because it was used
    recently, `young_ns` is the time of that use, else 0."""

    pages: list[PageId]
    enough: bool
    outranked: bool = False
    young_ns: int = 0


def rooted(files: Iterable[tuple[StoredPage, int]]) -> list[tuple[StoredPage, int]]:
    """Return the files with their stamps, no page's earlier than the stamps of the pages behind it.
    A killed process had not recorded the latest use of a chain: the new deep end would outlive the
    root."""
    found = list(files)
    names, stamps = [file.name for file, _ in found], [stamp_ns for _, stamp_ns in found]
    paged = {
        name.id.key[:PARENT_HINT_BYTES]: number
        for number, name in enumerate(names)
        if name.id.group == PAGED
    }
    for number in sorted(range(len(names)), key=lambda number: -names[number].position):
        before = paged.get(names[number].parent_hint)
        # A superseded page leaves first, whatever follows it; and a name may say anything.
        if (
            before is not None
            and names[before].position < names[number].position
            and min(stamps[before], stamps[number]) > SUPERSEDED_NS
        ):
            stamps[before] = max(stamps[before], stamps[number])
    return [(file, stamp_ns) for (file, _), stamp_ns in zip(found, stamps, strict=True)]


class Contents(OrderedPages[PageFile]):
    """Indexes page files and orders them for eviction. Not thread-safe: its owner's lock guards it.

    An undecodable page keeps its bytes and its place in the order, and is hidden from lookups;
    `undecodable` counts them. `taken` has what each namespace's pages take of the budget.
    """

    def __init__(self, policy: Keep | None = None) -> None:
        super().__init__(policy)
        self.nbytes = 0
        self.taken: Counter[BlockKey] = Counter()
        self.undecodable = 0

    def fill(self, files: Iterable[tuple[StoredPage, int]]) -> list[StoredPage]:
        """Take many files with their stamps into empty contents; return the useless ones.

        Of several files of one page the one that holds most is taken, and of equal ones the latest.
        """
        best: dict[PageId, tuple[StoredPage, int]] = {}
        useless: list[StoredPage] = []
        for file in files:
            page = file[0].name.id
            other = best.setdefault(page, file)
            if other is not file:
                worse, better = sorted((file, other), key=lambda of: (of[0].held, of[1]))
                best[page] = better
                useless.append(worse[0])
        for stored, stamp_ns in rooted(best.values()):
            self.add(PageFile(stored), stamp_ns, used=False)
        return useless

    def add(self, record: PageFile, stamp_ns: int, *, used: bool = True) -> None:
        if used:
            self.policy.wanted([record.id], stamp_ns)
        super().add(record, stamp_ns)
        self.nbytes += record.cost
        self.taken[record.namespace] += record.cost

    def pop(self, page: PageId) -> PageFile | None:
        file = super().pop(page)
        if file is not None:
            self.undecodable -= file.undecodable
            self.nbytes -= file.cost
            self.taken[file.namespace] -= file.cost
        return file

    def usable(self, page: PageId) -> PageFile | None:
        file = self.get(page)
        return None if file is None or file.undecodable else file

    def quarantine(self, page: PageId) -> None:
        if (file := self.usable(page)) is not None:
            file.undecodable = True
            self.undecodable += 1

    def use(
        self, chain: Iterable[PageId], stamp_ns: int, since_ns: int = 0, *, used: bool = True
    ) -> list[PageId]:
        """Give pages a stamp as `touch` does, those aside that are undecodable or were used later
        than both the stamp and `since_ns`; return the marked ones."""
        if self.undecodable:
            chain = [page for page in chain if self.usable(page) is not None]
        return self.touch(chain, stamp_ns, max(stamp_ns, since_ns), used=used)

    def victims(
        self,
        excess: int,
        candidate: Candidate | None = None,
        now_ns: int = sys.maxsize,
        until_ns: int = sys.maxsize,
        most: int = sys.maxsize,
    ) -> Victims:
        """Choose pages to evict for `excess` bytes, the first in the order first. At most `most`
        pages are returned: enough, or the first of enough.

        For a candidate only pages of less worth are chosen, and its own earlier version. None of
        them is pinned beyond `now_ns`, or was used after `until_ns` by another use. So a chain's
        deep end never evicts its root.
        """
        pages: list[PageId] = []
        if excess <= 0 or excess > self.nbytes:
            return Victims(pages, excess <= 0)
        outranked, young_ns = False, 0
        for file in self.in_order():
            if candidate is not None and file.id != candidate.page:
                outranked = file.rank >= candidate.rank
                if not outranked and until_ns < file.stamp_ns != candidate.stamp_ns:
                    outranked, young_ns = True, file.stamp_ns
                if not outranked and file.pinned_ns > now_ns:
                    continue
            if not outranked:
                pages.append(file.id)
                excess -= file.cost
            if excess <= 0 or outranked or len(pages) == most:
                break
        return Victims(pages, excess <= 0 or len(pages) == most, outranked, young_ns)

    def check_integrity(self) -> None:
        super().check_integrity()
        taken: Counter[BlockKey] = Counter()
        for file in self.records():
            taken[file.namespace] += file.cost
        assert self.nbytes == sum(taken.values())
        assert self.undecodable == sum(file.undecodable for file in self.records())
        assert all(taken[name] == nbytes for name, nbytes in self.taken.items())
