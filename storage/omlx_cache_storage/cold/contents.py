"""What the cold tier knows of its files without touching the disk: index, order and bytes."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, Keep, Lru
from omlx_cache_storage.format.names import ENTRY_BYTES, PARENT_HINT_BYTES, PageName, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import COLD, PAGED, PageId, PageInfo, Tail
from omlx_cache_storage.table import PageColumns, PageTable, Record, hint_numbers


class Named(Protocol):
    """A page file, whatever else is known of it."""

    @property
    def name(self) -> PageName: ...


AnyFile = TypeVar("AnyFile", bound=Named)
_EARLIEST_NS = -(1 << 62)


class PageFile(Record):
    """A page's file: one that takes another's name is a different record. `recorded_ns` is the time
    that this process gave the file last, 0 if it gave none."""

    __slots__ = ("held", "namespace", "nbytes", "recorded_ns")

    def __init__(self, stored: StoredPage) -> None:
        name = stored.name
        super().__init__(name.id, name.position, name.parent_hint, name.tail)
        self.namespace = stored.namespace
        self.held = name.held
        self.nbytes = stored.nbytes
        self.recorded_ns = 0

    @property
    def stored(self) -> StoredPage:
        name = PageName(self.id, self.hint, self.position, self.held, self.tail)
        return StoredPage(self.namespace, name, self.nbytes)

    @property
    def cost(self) -> int:
        """What the file takes of the budget."""
        return self.nbytes + ENTRY_BYTES


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
    whether a page that is worth more than the candidate stood in the way; `young_ns` is when that
    was used if it is worth more only since that was too short a while ago, else 0."""

    pages: list[PageId]
    enough: bool
    outranked: bool = False
    young_ns: int = 0


def columns_of(files: Sequence[PageFile], kept: Collection[PageId]) -> PageColumns:
    """Return files as columns; `kept` are those that a pin of the directory keeps."""
    numbers: dict[BlockKey, int] = {}
    namespace = [numbers.setdefault(file.namespace, len(numbers)) for file in files]
    keys = np.empty(len(files), np.object_)
    keys[:] = [file.id.key for file in files]
    return PageColumns(
        keys,
        hint_numbers(file.hint for file in files),
        np.array([file.position for file in files], np.int64),
        np.array([file.held for file in files], np.int64),
        np.array([file.nbytes for file in files], np.int64),
        # Times of files may be anything.
        np.array([max(file.stamp_ns, _EARLIEST_NS) for file in files], np.int64),
        list(numbers),
        np.array(namespace, np.uint32),
        np.array([file.id in kept for file in files], np.bool_),
    )


def rooted(files: Iterable[tuple[AnyFile, int]]) -> list[tuple[AnyFile, int]]:
    """Return the files with their stamps, no page's earlier than those of the pages behind it.

    A process that was killed had not recorded that a chain was used again: its new deep end would
    outlive its root.
    """
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


class Contents:
    """Indexes page files and orders them for eviction. Not thread-safe: its owner's lock guards it.

    An undecodable page keeps its bytes and its place in the order, and is hidden from look-ups.
    `_bytes` has what each namespace's pages take of the budget, and `kept_bytes` those in `_kept`:
    pins of the directory keep them.
    """

    def __init__(self, policy: Keep | None = None) -> None:
        self.nbytes = 0
        self.policy = policy or Lru()
        self._table: PageTable[PageFile] = PageTable(self.policy)
        self._kept: set[PageId] = set()
        self.kept_bytes = 0
        self._bytes: Counter[BlockKey] = Counter()
        self._undecodable: set[PageId] = set()

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, page: PageId) -> bool:
        return page in self._table

    def __iter__(self) -> Iterator[PageId]:
        return iter(self._table)

    @property
    def namespaces(self) -> list[BlockKey]:
        """The namespaces that ever had a page here."""
        return list(self._bytes)

    @property
    def undecodable(self) -> int:
        return len(self._undecodable)

    def fill(self, files: Iterable[tuple[StoredPage, int]]) -> list[StoredPage]:
        """Take many files with their stamps into empty contents; return those that are of no use:
        of several files of one page the one that holds most is taken, and of those the latest.

        No page gets an earlier stamp than the pages behind it have.
        """
        best: dict[PageId, tuple[StoredPage, int]] = {}
        useless: list[StoredPage] = []
        for file in files:
            page = file[0].name.id
            other = best.setdefault(page, file)
            if other is not file:
                better, worse = sorted((other, file), key=_worth, reverse=True)
                best[page] = better
                useless.append(worse[0])
        for stored, stamp_ns in rooted(best.values()):
            self.add(stored, stamp_ns, used=False)
        return useless

    def add(self, stored: StoredPage, stamp_ns: int, *, used: bool = True) -> None:
        """Take a page that is not here; `used`: its stamp is that of a request that wants it."""
        if used:
            self.policy.wanted([stored.name.id], stamp_ns)
        file = PageFile(stored)
        self._table.add(file, stamp_ns)
        self.nbytes += file.cost
        self._bytes[file.namespace] += file.cost

    def pop(self, page: PageId) -> StoredPage | None:
        self.keep(page, False)
        file = self._table.pop(page)
        if file is None:
            return None
        self._undecodable.discard(page)
        self.nbytes -= file.cost
        self._bytes[file.namespace] -= file.cost
        return file.stored

    def get(self, page: PageId) -> StoredPage | None:
        """Return a page that this process can use, as far as it knows."""
        return None if page in self._undecodable else self.stored(page)

    def stored(self, page: PageId) -> StoredPage | None:
        """Return a page, whether it can be used or not."""
        file = self._table.get(page)
        return None if file is None else file.stored

    def file(self, page: PageId) -> PageFile | None:
        """Return the record of a page's file: another one when it is written anew."""
        return self._table.get(page)

    def record(self, page: PageId, time_ns: int) -> None:
        """Note that a page's file was given a time."""
        file = self._table.get(page)
        if file is not None:
            file.recorded_ns = time_ns

    def is_undecodable(self, page: PageId) -> bool:
        return page in self._undecodable

    def quarantine(self, page: PageId) -> None:
        """Hide a page that cannot be decoded here."""
        if page in self._table:
            self._undecodable.add(page)

    def keep(self, page: PageId, kept: bool = True) -> None:
        """Mark a page as one that a pin of the directory keeps, or as none."""
        if page in self._table and (page in self._kept) != kept:
            (self._kept.add if kept else self._kept.remove)(page)
            self.kept_bytes += self.cost(page) if kept else -self.cost(page)

    def keep_none(self) -> set[PageId]:
        """Take all marks away, and return the pages that had one."""
        kept, self._kept = self._kept, set()
        self.kept_bytes = 0
        return kept

    def is_kept(self, page: PageId) -> bool:
        return page in self._kept

    def infos(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        """Return what is known of many pages, None for those that cannot be used."""
        hidden = self._undecodable
        return [
            None
            if file is None or file.id in hidden
            else PageInfo(file.position, file.held, file.nbytes, COLD)
            for file in self._table.get_all(pages)
        ]

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        return self._table.tails_of(parents)

    def touch(
        self, chain: Iterable[PageId], stamp_ns: int, since_ns: int = 0, *, used: bool = True
    ) -> list[PageId]:
        """Mark pages as used at a stamp, but those used later than that and than `since_ns`, and
        undecodable ones; return those that are marked. `used`: a request wants them."""
        if self._undecodable:
            chain = [page for page in chain if page not in self._undecodable]
        return self._table.touch(chain, stamp_ns, max(stamp_ns, since_ns), used=used)

    def place(self, pages: Iterable[PageId], stamp_ns: int) -> list[PageId]:
        """Put pages at a stamp, whenever they were used; return those that are here."""
        return self._table.touch(pages, stamp_ns)

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        """Return the keys with a child outside this chain."""
        return self._table.branches(keys)

    def stamp(self, page: PageId) -> int:
        """Return when a page was used; raises KeyError."""
        return self._table.stamp(page)

    def cost(self, page: PageId) -> int:
        """Return what a page takes of the budget, 0 for one that is not here."""
        file = self._table.get(page)
        return 0 if file is None else file.cost

    def nbytes_of(self, namespace: BlockKey) -> int:
        """Return what a namespace's pages take of the budget."""
        return self._bytes[namespace]

    def victims(
        self,
        excess: int,
        candidate: Candidate | None = None,
        is_pinned: Callable[[PageId], bool] = lambda page: False,
        until_ns: int = sys.maxsize,
        most: int = sys.maxsize,
    ) -> Victims:
        """Choose pages to evict for `excess` bytes, the first in the order first. `most` pages:
        they are enough, or the first of those that are.

        For a candidate only pages that are worth less are chosen, none that is pinned or was used
        after `until_ns` by another use, and its own earlier version: a chain's deep end never
        drives out its root.
        """
        pages: list[PageId] = []
        if excess <= 0 or excess > self.nbytes:
            return Victims(pages, excess <= 0)
        outranked, young_ns = False, 0

        def take(file: PageFile) -> bool:
            nonlocal excess, outranked, young_ns
            if candidate is not None and file.id != candidate.page:
                outranked = file.rank >= candidate.rank
                if not outranked and until_ns < file.stamp_ns != candidate.stamp_ns:
                    outranked, young_ns = True, file.stamp_ns
                if not outranked and is_pinned(file.id):
                    return True
            if not outranked:
                pages.append(file.id)
                excess -= file.cost
            return excess > 0 and not outranked and len(pages) < most

        self._table.visit(take)
        return Victims(pages, excess <= 0 or len(pages) == most, outranked, young_ns)

    def first(self, count: int) -> list[PageId]:
        """Return the pages that would leave first, `count` at most."""
        pages: list[PageId] = []

        def take(file: PageFile) -> bool:
            pages.append(file.id)
            return len(pages) < count

        self._table.visit(take)
        return pages

    def files(self) -> list[PageFile]:
        """Return the records, in no order: cheap, and to be worked on outside of the lock."""
        return self._table.records()

    def columns(self) -> tuple[list[PageFile], set[PageId]]:
        """Return what `columns_of` needs."""
        return self._table.records(), set(self._kept)

    def check_integrity(self) -> None:
        """Assert that the bytes, the index and the order agree."""
        self._table.check_integrity()
        taken: Counter[BlockKey] = Counter()
        for file in self.files():
            taken[file.namespace] += file.cost
        assert self.nbytes == sum(taken.values())
        assert self.kept_bytes == sum(map(self.cost, self._kept))
        assert all(taken[name] == nbytes for name, nbytes in self._bytes.items())
        assert all(page in self._table for page in (*self._undecodable, *self._kept))


def _worth(file: tuple[StoredPage, int]) -> tuple[int, int]:
    return file[0].held, file[1]
