"""What a tier knows of its pages: rows of columns, found by page id and ordered for eviction.

A page is a row of NumPy columns, its key too: a million pages are no object for Python's memory or
its garbage collector to go through.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.eviction.policy import EvictionPolicy, Lru
from omlx_cache_storage.format.names import PARENT_HINT_BYTES, parent_hint
from omlx_cache_storage.index import CHUNK, NONE, Column, PageIds, PageIndex
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import EvictionOrder, Rows
from omlx_cache_storage.page import PageId, Tail

FIRST_ROWS = 64
Entry = TypeVar("Entry")


class Touched(NamedTuple):
    """Pages that got a stamp, as often as named; and the stamps they had, each page once."""

    pages: list[PageId]
    before: npt.NDArray[np.int64]

    def moves(self) -> list[tuple[int, int]]:
        """Return stamps that pages had, and how many had each: one of several runs comes as
        often."""
        before = self.before
        if not len(before):
            return []
        # What was used together mostly has one stamp: to sort would take longer than all else.
        starts = [0, *(np.flatnonzero(before[1:] != before[:-1]) + 1).tolist()]
        ends = [*starts[1:], len(before)]
        stamps = before[starts].tolist()
        return [(s, b - a) for s, a, b in zip(stamps, starts, ends, strict=True)]


class TableCopy(NamedTuple):
    """A copy of a table's columns, of those rows that have a page."""

    rows: Rows
    ids: PageIds
    hints: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.int64]
    tails: npt.NDArray[np.bool_]
    stamps: npt.NDArray[np.int64]

    def named(self) -> tuple[Iterator[PageId], Iterator[bytes], list[int]]:
        """Return the ids, the hints at the pages before and the positions."""
        hints = map(_hint_bytes, self.hints.tolist())
        return self.ids.pages(), hints, self.positions.tolist()


class PageTable:
    """Rows by page id, tails by their parent, and the eviction order. Its owner's lock guards it.

    `_tails` has the row itself where a boundary has one tail, which nearly all have. Columns that
    `column` gave are resized in place: keep the array, no view of it.
    """

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self._policy = policy or Lru()
        self._index = PageIndex()
        self._order = EvictionOrder()
        self._free = array("i")
        self._used = 0
        self._columns: list[Column] = []
        self._tail = self.column(np.bool_)
        self._hint = self.column(np.uint64)
        self._tails: dict[int, int | set[int]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, page: PageId) -> bool:
        return self._index.row(page) is not None

    def __iter__(self) -> Iterator[PageId]:
        """Yield all pages, in no order, as they are now."""
        return self._index.ids(self._order.rows()).pages()

    def column(self, kind: Any) -> Column:
        """Return a new column of a NumPy type, one item a row."""
        column = np.zeros(len(self._order.stamps), kind)
        self._columns.append(column)
        return column

    # Finding.

    def row(self, page: PageId) -> int | None:
        return self._index.row(page)

    def rows(self, pages: Iterable[PageId]) -> Rows:
        """Return the rows of many pages, `NONE` for those that are not here."""
        return self._index.rows(pages if isinstance(pages, list | tuple) else list(pages))

    def page(self, row: int) -> PageId:
        return self._index.page(row)

    def position(self, row: int) -> int:
        return self._order.positions.item(row)

    def positions(self, rows: Rows) -> list[int]:
        positions: list[int] = self._order.positions[rows].tolist()
        return positions

    def hint(self, row: int) -> bytes:
        """Return the first bytes of the key of the page before."""
        return _hint_bytes(self._hint.item(row))

    def tail(self, row: int) -> bool:
        tail: bool = self._tail.item(row)
        return tail

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        """Return the tails that may follow boundaries: hints, to be checked by key."""
        tails: set[Tail] = set()
        for hint in self._tails.keys() & map(_hint_of, parents) if self._tails else ():
            found = self._tails[hint]
            for row in found if isinstance(found, set) else (found,):
                tails.add(Tail(self.position(row), self._index.group(row)))
        return tails

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        """Return those of the keys that have a page behind them which is none of `keys` itself:
        where other chains leave this one. Looks at every row, in one pass."""
        hints = {_hint_of(key): key for key in keys}
        rows = np.flatnonzero(np.isin(self._hint[: self._used], np.array([*hints], np.uint64)))
        chain = set(keys)
        return {
            hints[self._hint.item(row)]
            for row in rows.tolist()
            if self._order.is_here(row) and self._index.key(row) not in chain
        }

    # Changing.

    def add(self, page: PageId, position: int, hint: bytes, tail: bool, stamp_ns: int) -> int:
        """Take a page that is not here; return its row."""
        row = self._new_row()
        self._index.add(page, row)
        self._hint[row] = number = int.from_bytes(hint, "big")
        self._tail[row] = tail
        if tail:
            self._add_tail(number, row)
        self._order.add(row, position, stamp_ns)
        self._policy.added(stamp_ns)
        return row

    def fill(
        self,
        index: PageIndex,
        hints: npt.NDArray[np.uint64],
        tails: npt.NDArray[np.bool_],
        positions: npt.NDArray[np.int64],
        stamps: npt.NDArray[np.int64],
    ) -> None:
        """Take pages at once into an empty table, each with its row; `index`, which knows the first
        rows, belongs to the table from then on."""
        count = len(stamps)
        self._index = index
        self._grow(count)
        self._used = count
        self._hint[:count] = hints
        self._tail[:count] = tails
        for row in np.flatnonzero(tails).tolist():
            self._add_tail(int(hints[row]), row)
        self._order.fill(positions, stamps)
        for stamp_ns, pages in _counted(stamps):
            self._policy.added(stamp_ns, pages)

    def pop(self, page: PageId) -> int | None:
        """Remove a page; its row is valid until the next one is added."""
        row = self._index.remove(page)
        if row is not None:
            if self._tail.item(row):
                self._drop_tail(self._hint.item(row), row)
            self._policy.left(page, self._order.stamp(row))
            self._order.remove(row)
            self._hint[row] = 0
            self._free.append(row)
        return row

    def touch(
        self,
        pages: Iterable[PageId],
        stamp_ns: int,
        latest_ns: int | None = None,
        *,
        used: bool = False,
    ) -> Touched:
        """Give the pages that are here a stamp; with `latest_ns`, those whose stamp is no later.
        `used`: a request wants them."""
        pages = list(pages)
        rows = self.rows(pages)
        held = rows != NONE
        if latest_ns is not None and len(self):
            # Of a page that is not here it is some other's stamp.
            held &= self._order.stamps[rows] <= latest_ns
        if not held.all():
            pages = [page for page, here in zip(pages, held.tolist(), strict=True) if here]
            rows = rows[held]
        # Each once, so that stamps can be counted by what is reported.
        touched = Touched(pages, self._order.move(list(dict.fromkeys(rows.tolist())), stamp_ns))
        for before_ns, count in touched.moves():
            self._policy.moved(before_ns, stamp_ns, count, used=used)
        return touched

    # The order.

    def stamp(self, page: PageId) -> int:
        """Return when a page was used; raises KeyError."""
        return self._order.stamp(self._row(page))

    def leaves_before(self, page: PageId, position: int, stamp_ns: int) -> bool:
        """True when a page is worth less than one that ends at `position` and was used then."""
        return self._order.rank(self._row(page)) < (stamp_ns, -position)

    def visit(self, visitor: Callable[[PageId], bool]) -> None:
        """Show pages, the first to be evicted first, until `visitor` returns False.

        `visitor` must not change the table. Costs O(log n) a page shown.
        """
        self.visit_rows(lambda row: visitor(self.page(row)))

    def visit_rows(self, visitor: Callable[[int], bool]) -> None:
        """Show the rows of pages, as `visit` does."""
        walk = self._order.walk()
        try:
            for row in walk:
                if not visitor(row):
                    return
        finally:
            walk.close()

    def stamp_at(self, row: int) -> int:
        """Return when the page of a row was used; for one without a page nothing of use."""
        return self._order.stamp(row)

    def stamps_at(self, rows: Rows) -> npt.NDArray[np.int64]:
        return self._order.stamps[rows]

    def in_order(self) -> Rows:
        """Return all rows, the first to be evicted last, in one pass; a view, valid until the table
        changes. Not for visitors."""
        return self._order.settled()

    def ordered(self) -> list[PageId]:
        """Return all pages, the first to be evicted first."""
        return list(map(self.page, self._order.ordered().tolist()))

    def copy(self) -> TableCopy:
        """Return a copy in no order, made without sorting and without an object for each page."""
        rows = self._order.rows()
        return TableCopy(
            rows,
            self._index.ids(rows),
            self._hint[rows],
            self._order.positions[rows],
            self._tail[rows],
            self._order.stamps[rows],
        )

    def check_integrity(self) -> None:
        """Assert that the index and the order agree."""
        rows = self._order.ordered().tolist()
        assert len(rows) == len(self._index)
        assert all(self.row(self.page(row)) == row for row in rows)

    def _row(self, page: PageId) -> int:
        row = self._index.row(page)
        if row is None:
            raise KeyError(page)
        return row

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == self._index.room:
            self._grow(self._used + max(FIRST_ROWS, self._used // 8))
        self._used += 1
        return self._used - 1

    def _grow(self, rows: int) -> None:
        self._index.grow(rows)
        for column in self._columns:
            column.resize(rows, refcheck=False)
        self._order.grow(rows)

    def _add_tail(self, hint: int, row: int) -> None:
        siblings = self._tails.setdefault(hint, row)
        if isinstance(siblings, set):
            siblings.add(row)
        elif siblings != row:
            self._tails[hint] = {siblings, row}

    def _drop_tail(self, hint: int, row: int) -> None:
        siblings = self._tails[hint]
        if isinstance(siblings, set) and len(siblings) > 1:
            siblings.discard(row)
        else:
            del self._tails[hint]


def _counted(stamps: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield each stamp with the pages that have it; makes few of them at a time."""
    values, counts = np.unique(stamps, return_counts=True)
    for start in range(0, len(values), CHUNK):
        part = slice(start, start + CHUNK)
        yield from zip(values[part].tolist(), counts[part].tolist(), strict=True)


def _hint_of(key: BlockKey) -> int:
    return int.from_bytes(parent_hint(key), "big")


def _hint_bytes(hint: int) -> bytes:
    return hint.to_bytes(PARENT_HINT_BYTES, "big")


class EntryTable(PageTable, Generic[Entry]):
    """A table with an object of its owner's for each page."""

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        super().__init__(policy)
        self._entries: list[Entry | None] = []

    def get(self, page: PageId) -> Entry | None:
        row = self.row(page)
        return None if row is None else self._entries[row]

    def get_all(self, pages: Iterable[PageId]) -> list[Entry | None]:
        entries = self._entries
        return [None if row == NONE else entries[row] for row in self.rows(pages).tolist()]

    def entries(self) -> list[Entry]:
        """Return the objects, in no order."""
        return [entry for entry in self._entries if entry is not None]

    def put(
        self, page: PageId, entry: Entry, position: int, hint: bytes, tail: bool, stamp_ns: int
    ) -> None:
        """Take a page that is not here."""
        row = self.add(page, position, hint, tail, stamp_ns)
        if row == len(self._entries):
            self._entries.append(entry)
        else:
            self._entries[row] = entry

    def take(self, page: PageId) -> Entry | None:
        """Remove a page, and return its object."""
        row = self.pop(page)
        if row is None:
            return None
        entry, self._entries[row] = self._entries[row], None
        return entry
