"""What the cold tier knows of its files without touching the disk: index, order and bytes."""

import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.cold.lanes import Lanes
from omlx_cache_storage.cold.rooted import rooted_stamps
from omlx_cache_storage.columns import PageColumns
from omlx_cache_storage.eviction.policy import EvictionPolicy, Lru
from omlx_cache_storage.format.names import ENTRY_BYTES, PageName, StoredPage
from omlx_cache_storage.index import NONE, PageIndex
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import cut
from omlx_cache_storage.page import PAGED, PageId, PageInfo, Tail
from omlx_cache_storage.table import PageTable, TableCopy, Touched

_indexes = itertools.count(1)


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


class Files(NamedTuple):
    """Page files as columns, one row a file: what a directory was found to hold."""

    rows: PageIndex
    namespaces: dict[BlockKey, int]
    hints: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.int64]
    tails: npt.NDArray[np.bool_]
    namespace: npt.NDArray[np.uint32]


class Snapshot(NamedTuple):
    """A copy of the contents, unsorted: cheap to take under a lock, to be worked on outside."""

    table: TableCopy
    namespaces: Sequence[BlockKey]
    namespace: npt.NDArray[np.uint32]
    held: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    kept: npt.NDArray[np.bool_]

    def pages_of(self, namespaces: Collection[BlockKey]) -> list[tuple[BlockKey, PageId, bool]]:
        """Return the pages of namespaces and those that are kept, the first tokens first, each with
        its namespace and whether it is kept."""
        numbers = [n for n, name in enumerate(self.namespaces) if name in namespaces]
        at = np.flatnonzero(np.isin(self.namespace, numbers) | self.kept)
        at = at[np.argsort(self.table.positions[at], kind="stable")]
        named = self.table.ids.of(at).pages()
        owners = (self.namespaces[number] for number in self.namespace[at].tolist())
        return list(zip(owners, named, self.kept[at].tolist(), strict=True))

    def files(self) -> Iterator[tuple[StoredPage, int]]:
        """Yield every page with its stamp."""
        names = map(PageName, *self.table.named(), self.held.tolist(), self.table.tails.tolist())
        namespaces = map(self.namespaces.__getitem__, self.namespace.tolist())
        stored = map(StoredPage, namespaces, names, self.nbytes.tolist())
        return zip(stored, self.table.stamps.tolist(), strict=True)

    def columns(self) -> PageColumns:
        """Return every page; makes no object for any."""
        table = self.table
        return PageColumns(
            table.ids.key_objects(),
            table.hints,
            table.positions,
            self.held,
            self.nbytes,
            table.stamps,
            self.namespaces,
            self.namespace,
            self.kept,
        )


class Contents:
    """Indexes page files and orders them for eviction. Not thread-safe: its owner's lock guards it.

    An undecodable page keeps its bytes and its place in the order, and is hidden from look-ups.
    `_serial` has a number for each file: one that takes another's name is a different one;
    `_recorded` the time that this process gave a file last.
    `_bytes` has what each namespace's pages take of the budget, and `kept_bytes` those that are
    marked in `_kept`: pins of the directory keep them.
    """

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self.nbytes = 0
        self.policy = policy or Lru()
        self._table = PageTable(self.policy)
        self._held = self._table.column(np.int64)
        self._nbytes = self._table.column(np.int64)
        self._namespace = self._table.column(np.uint32)
        self._serial = self._table.column(np.int64)
        self._recorded = self._table.column(np.int64)
        self._kept = self._table.column(np.bool_)
        self.kept_bytes = 0
        # No two indexes of one directory number files alike.
        self._serials = next(_indexes) << 40
        self._namespaces: list[BlockKey] = []
        self._numbers: dict[BlockKey, int] = {}
        self._bytes: list[int] = []
        self._lanes = Lanes(self._table, self._namespace, self._serial)
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
        return list(self._namespaces)

    @property
    def undecodable(self) -> int:
        return len(self._undecodable)

    def fill(self, files: Files) -> None:
        """Take many files at once into empty contents; `files` belongs to them from then on.

        No page gets an earlier stamp than the pages behind it have.
        """
        count = len(files.stamps)
        stamps = rooted_stamps(
            *files.rows.prefixes(PAGED), files.hints, files.positions, files.stamps
        )
        self._table.fill(files.rows, files.hints, files.tails, files.positions, stamps)
        self._serial[:count] = self._serials
        self._held[:count] = files.held
        self._nbytes[:count] = files.nbytes
        self._namespace[:count] = files.namespace
        self._numbers = files.namespaces
        self._namespaces = list(files.namespaces)
        taken = np.zeros(len(self._namespaces), np.int64)
        np.add.at(taken, files.namespace, files.nbytes + ENTRY_BYTES)
        self._bytes = taken.tolist()
        self.nbytes = sum(self._bytes)
        self._lanes.clear()

    def add(self, stored: StoredPage, stamp_ns: int, *, used: bool = True) -> None:
        """Take a page that is not here; `used`: its stamp is that of a request that wants it."""
        name = stored.name
        if used:
            self.policy.wanted([name.id], stamp_ns)
        row = self._table.add(name.id, name.position, name.parent_hint, name.tail, stamp_ns)
        self._held[row] = name.held
        self._nbytes[row] = stored.nbytes
        self._namespace[row] = number = self._number(stored.namespace)
        self._recorded[row] = 0
        self._kept[row] = False
        self._serials += 1
        self._serial[row] = self._serials
        self.nbytes += stored.cost
        self._bytes[number] += stored.cost
        if self._lanes:
            self._lanes.placed([row], cut(stamp_ns))

    def pop(self, page: PageId) -> StoredPage | None:
        stored = self.stored(page)
        if stored is not None:
            self.keep(page, False)
            self._table.pop(page)
            self._undecodable.discard(page)
            self.nbytes -= stored.cost
            self._bytes[self._numbers[stored.namespace]] -= stored.cost
        return stored

    def get(self, page: PageId) -> StoredPage | None:
        """Return a page that this process can use, as far as it knows."""
        return None if page in self._undecodable else self.stored(page)

    def stored(self, page: PageId) -> StoredPage | None:
        """Return a page, whether it can be used or not."""
        row = self._table.row(page)
        if row is None:
            return None
        namespace = self._namespaces[self._namespace.item(row)]
        position, held = self._table.position(row), self._held.item(row)
        name = PageName(page, self._table.hint(row), position, held, self._table.tail(row))
        return StoredPage(namespace, name, self._nbytes.item(row))

    def serial(self, page: PageId) -> int | None:
        """Return the number of a page's file: another one when it is written anew."""
        row = self._table.row(page)
        return None if row is None else self._serial.item(row)

    def recorded(self, page: PageId) -> int:
        """Return the time that this process gave a page's file last, 0 if it gave none."""
        row = self._table.row(page)
        return 0 if row is None else self._recorded.item(row)

    def record(self, page: PageId, time_ns: int) -> None:
        """Note that a page's file was given a time."""
        row = self._table.row(page)
        if row is not None:
            self._recorded[row] = time_ns

    def is_undecodable(self, page: PageId) -> bool:
        return page in self._undecodable

    def quarantine(self, page: PageId) -> None:
        """Hide a page that cannot be decoded here."""
        if page in self._table:
            self._undecodable.add(page)

    def keep(self, page: PageId, kept: bool = True) -> None:
        """Mark a page as one that a pin of the directory keeps, or as none."""
        row = self._table.row(page)
        if row is not None and bool(self._kept.item(row)) != kept:
            self._kept[row] = kept
            self.kept_bytes += self.cost(page) if kept else -self.cost(page)

    def keep_none(self) -> None:
        """Take all marks away."""
        self._kept[:] = False
        self.kept_bytes = 0

    def is_kept(self, page: PageId) -> bool:
        row = self._table.row(page)
        return row is not None and bool(self._kept.item(row))

    def infos(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        """Return what is known of many pages, None for those that cannot be used."""
        rows = self._table.rows(pages)
        if self._undecodable:
            hidden = map(self._undecodable.__contains__, pages)
            rows[np.fromiter(hidden, np.bool_, len(rows))] = NONE
        here = rows[rows != NONE]
        columns = (
            self._table.positions(here),
            self._held[here].tolist(),
            self._nbytes[here].tolist(),
        )
        found = map(PageInfo._make, zip(*columns, repeat("cold"), strict=False))
        if len(here) == len(rows):
            return list(found)
        return [None if row == NONE else next(found) for row in rows.tolist()]

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        return self._table.tails_of(parents)

    def touch(
        self, chain: Iterable[PageId], stamp_ns: int, since_ns: int = 0, *, used: bool = True
    ) -> list[PageId]:
        """Mark pages as used at a stamp, but those used later than that and than `since_ns`, and
        undecodable ones; return those that are marked. `used`: a request wants them."""
        if self._undecodable:
            chain = [page for page in chain if page not in self._undecodable]
        latest_ns = max(stamp_ns, since_ns)
        return self._placed(self._table.touch(chain, stamp_ns, latest_ns, used=used), stamp_ns)

    def place(self, pages: Iterable[PageId], stamp_ns: int) -> list[PageId]:
        """Put pages at a stamp, whenever they were used; return those that are here."""
        return self._placed(self._table.touch(pages, stamp_ns), stamp_ns)

    def _placed(self, touched: Touched, stamp_ns: int) -> list[PageId]:
        if self._lanes:
            self._lanes.placed(self._table.rows(touched.pages).tolist(), cut(stamp_ns))
        return touched.pages

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        """Return those of a chain's keys that a page follows which is none of them."""
        return self._table.branches(keys)

    def stamp(self, page: PageId) -> int:
        """Return when a page was used; raises KeyError."""
        return self._table.stamp(page)

    def cost(self, page: PageId) -> int:
        """Return what a page takes of the budget, 0 for one that is not here."""
        row = self._table.row(page)
        return 0 if row is None else self._nbytes.item(row) + ENTRY_BYTES

    def nbytes_of(self, namespace: BlockKey) -> int:
        """Return what a namespace's pages take of the budget."""
        number = self._numbers.get(namespace)
        return 0 if number is None else self._bytes[number]

    def victims(
        self,
        excess: int,
        candidate: Candidate | None = None,
        is_pinned: Callable[[PageId], bool] = lambda page: False,
        until_ns: int = sys.maxsize,
        within: frozenset[BlockKey] | None = None,
        most: int = sys.maxsize,
    ) -> Victims:
        """Choose pages to evict for `excess` bytes, the first in the order first; `within`: of
        these namespaces only. `most` pages: they are enough, or the first of those that are.

        For a candidate only pages that are worth less are chosen, none that is pinned or was used
        after `until_ns` by another use, and its own earlier version: a chain's deep end never
        drives out its root.
        """
        pages: list[PageId] = []
        most = self.nbytes if within is None else sum(map(self.nbytes_of, within))
        if excess <= 0 or excess > most:
            return Victims(pages, excess <= 0)
        outranked, young_ns = False, 0

        def take(row: int) -> bool:
            nonlocal excess, outranked, young_ns
            page = self._table.page(row)
            if candidate is not None and page != candidate.page:
                stamp_ns = self._table.stamp(page)
                outranked = not self._table.leaves_before(page, *candidate[1:])
                if not outranked and until_ns < stamp_ns != candidate.stamp_ns:
                    outranked, young_ns = True, stamp_ns
                if not outranked and is_pinned(page):
                    return True
            if not outranked:
                pages.append(page)
                excess -= self._nbytes.item(row) + ENTRY_BYTES
            return excess > 0 and not outranked and len(pages) < most

        if within is None:
            self._table.visit_rows(take)
        else:
            self._lanes.visit(within, self._number, take)
        return Victims(pages, excess <= 0 or len(pages) == most, outranked, young_ns)

    def first(self, count: int) -> list[PageId]:
        """Return the pages that would leave first, `count` at most."""
        pages: list[PageId] = []

        def take(page: PageId) -> bool:
            pages.append(page)
            return len(pages) < count

        self._table.visit(take)
        return pages

    def snapshot(self) -> Snapshot:
        table = self._table.copy()
        rows = table.rows
        namespace, held, nbytes = self._namespace[rows], self._held[rows], self._nbytes[rows]
        return Snapshot(table, list(self._namespaces), namespace, held, nbytes, self._kept[rows])

    def check_integrity(self) -> None:
        """Assert that the bytes, the index and the order agree."""
        self._table.check_integrity()
        taken = dict.fromkeys(self._namespaces, 0)
        for stored, _ in self.snapshot().files():
            taken[stored.namespace] += stored.cost
        assert self.nbytes == sum(taken.values())
        kept = [self.cost(page) for page in self._table if self.is_kept(page)]
        assert self.kept_bytes == sum(kept)
        assert taken == {name: self.nbytes_of(name) for name in self._namespaces}
        self._lanes.check_integrity()
        assert all(page in self._table for page in self._undecodable)

    def _number(self, namespace: BlockKey) -> int:
        number = self._numbers.get(namespace)
        if number is None:
            number = self._numbers[namespace] = len(self._namespaces)
            self._namespaces.append(namespace)
            self._bytes.append(0)
        return number
