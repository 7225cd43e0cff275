"""Which row of a table a page has: open addressing over keys that lie in one column.

No object is kept for a page: its key is 32 bytes of a column, its place four bytes of a slot.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import Rows
from omlx_cache_storage.page import PageId

Column = npt.NDArray[Any]

KEY_BYTES = 32
"""The longest key; behind shorter ones a column has zeros."""
NONE = -1
"""The row of a page that is not here, and of a slot that is free."""
FEWEST_SLOTS = 64
ROOM = 3
"""At least so many slots a page: most are found at the first look."""
SHORT = 16
"""Pages that are found one by one more quickly than as an array."""
CHUNK = 4096
_KEY = np.dtype((np.void, KEY_BYTES))
_MARK = 0xFFFFFFFF
_key, _group = itemgetter(0), itemgetter(1)


class PageIds(NamedTuple):
    """Ids of pages as columns, one row a page."""

    keys: Column
    lengths: npt.NDArray[np.uint8]
    groups: Sequence[str]
    group: npt.NDArray[np.uint32]

    def of(self, rows: npt.NDArray[np.intp]) -> "PageIds":
        """Return those of some rows."""
        return PageIds(self.keys[rows], self.lengths[rows], self.groups, self.group[rows])

    def key_objects(self) -> Column:
        """Return the keys as Python has them."""
        made = np.empty(len(self.keys), np.object_)
        for row, page in enumerate(self.pages()):
            made[row] = page.key
        return made

    def pages(self) -> Iterator[PageId]:
        """Yield the ids; makes few of them at a time."""
        for start in range(0, len(self.keys), CHUNK):
            part = slice(start, start + CHUNK)
            keys, lengths = self.keys[part].tolist(), self.lengths[part].tolist()
            groups = map(self.groups.__getitem__, self.group[part].tolist())
            cut = [key[:length] for key, length in zip(keys, lengths, strict=True)]
            yield from map(PageId, cut, groups)


class PageIndex:
    """Finds rows by page id; its owner says which row a page gets. Not thread-safe.

    A slot has the row of a page whose hash leads to it, or to one before it with none free in
    between. `_marks` has 32 bits of each row's hash, so that most pages that are not meant are
    passed over without a look at their keys. A match is one of whole keys and groups.
    """

    def __init__(self) -> None:
        self._keys: Column = np.zeros(0, _KEY)
        self._lengths = np.zeros(0, np.uint8)
        self._group = np.zeros(0, np.uint32)
        self._marks = np.zeros(0, np.uint32)
        self._groups: list[str] = []
        self._numbers: dict[str, int] = {}
        self._count = 0
        self._use(FEWEST_SLOTS)

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """How many rows there is room for."""
        return len(self._keys)

    def grow(self, rows: int) -> None:
        """Make room for so many rows."""
        for column in (self._keys, self._lengths, self._group, self._marks):
            column.resize(rows, refcheck=False)

    # Finding.

    def row(self, page: PageId) -> int | None:
        key, group = page
        length = len(key)
        wanted = key if length == KEY_BYTES else key.ljust(KEY_BYTES, b"\0")
        slots, mask = self._slots, self._mask
        slot = hash(page) & mask
        while (row := slots[slot]) != NONE:
            if (
                self._keys.item(row) == wanted
                and self._groups[self._group.item(row)] == group
                and self._lengths.item(row) == length
            ):
                return row
            slot = (slot + 1) & mask
        return None

    def rows(self, pages: Sequence[PageId]) -> Rows:
        """Return the rows of many pages, NONE for those that are not here."""
        if not self._count:
            return np.full(len(pages), NONE, np.int32)
        keys = list(map(_key, pages))
        if len(pages) <= SHORT or set(map(len, keys)) != {KEY_BYTES}:
            found = [NONE if row is None else row for row in map(self.row, pages)]
            return np.array(found, np.int32)
        hashes = np.fromiter(map(hash, pages), np.int64, len(pages))
        at, slots = hashes & self._mask, self._column
        rows: Rows = slots[at]
        marks = hashes.astype(np.uint32)
        others = np.flatnonzero((rows != NONE) & (self._marks[rows] != marks))
        while len(others):
            at[others] = (at[others] + 1) & self._mask
            rows[others] = looked = slots[at[others]]
            others = others[(looked != NONE) & (self._marks[looked] != marks[others])]
        same = self._keys[rows] == np.frombuffer(b"".join(keys), _KEY)
        same &= (self._lengths[rows] == KEY_BYTES) & (self._group[rows] == self._numbers_of(pages))
        for number in np.flatnonzero((rows != NONE) & ~same).tolist():
            # Another page of the same mark.
            row = self.row(pages[number])
            rows[number] = NONE if row is None else row
        return rows

    def page(self, row: int) -> PageId:
        return PageId(self.key(row), self.group(row))

    def key(self, row: int) -> BlockKey:
        key: BlockKey = self._keys.item(row)
        length = self._lengths.item(row)
        return key if length == KEY_BYTES else BlockKey(key[:length])

    def group(self, row: int) -> str:
        return self._groups[self._group.item(row)]

    def ids(self, rows: Rows) -> PageIds:
        """Return a copy of what is known of rows."""
        return PageIds(self._keys[rows], self._lengths[rows], list(self._groups), self._group[rows])

    def prefixes(self, group: str) -> tuple[Rows, npt.NDArray[np.uint64]]:
        """Return the rows of a group's pages, and how their keys begin: eight bytes as a number."""
        slots = self._column
        rows = np.sort(slots[slots != NONE])
        number = self._numbers.get(group, len(self._groups))
        rows = rows[self._group[rows] == number]
        words = self._keys.view(">u8").reshape(-1, KEY_BYTES // 8)
        return rows, words[rows, 0].astype(np.uint64)

    # Changing.

    def add(self, page: PageId, row: int) -> None:
        """Take a page that is not here, in a row that is free; raises ValueError for a key that is
        too long."""
        key, group = page
        if len(key) > KEY_BYTES:
            raise ValueError(f"a block's key has {KEY_BYTES} bytes at most, got {len(key)}")
        mark = hash(page) & _MARK
        self._keys[row] = key
        self._lengths[row] = len(key)
        self._group[row] = self.number(group)
        self._marks[row] = mark
        self._count += 1
        if self._count * ROOM > len(self._column):
            self._widen()
        slots, mask = self._slots, self._mask
        slot = mark & mask
        while slots[slot] != NONE:
            slot = (slot + 1) & mask
        slots[slot] = row

    def remove(self, page: PageId) -> int | None:
        """Forget a page; return the row that it had, which is free from then on."""
        row = self.row(page)
        if row is None:
            return None
        slots, mask, marks = self._slots, self._mask, self._marks
        slot = hash(page) & mask
        while slots[slot] != row:
            slot = (slot + 1) & mask
        # No page may be behind a free slot that its hash leads to: who is moves into it.
        free = slot
        while (other := slots[slot := (slot + 1) & mask]) != NONE:
            if (slot - marks.item(other)) & mask >= (slot - free) & mask:
                slots[free] = other
                free = slot
        slots[free] = NONE
        self._count -= 1
        return row

    def fill(
        self,
        keys: Column,
        lengths: npt.NDArray[np.uint8],
        groups: Sequence[str],
        group: npt.NDArray[np.uint32],
        marks: npt.NDArray[np.uint32],
    ) -> list[tuple[int, int]]:
        """Take pages at once into an empty index, each with its row; the columns belong to it from
        then on, `marks` are their hashes. Of several rows of one page one is found: return each
        other one beside it."""
        self._keys, self._lengths, self._group, self._marks = keys, lengths, group, marks
        self._groups = list(groups)
        self._numbers = {group: number for number, group in enumerate(groups)}
        slots = FEWEST_SLOTS
        while slots < len(keys) * ROOM:
            slots *= 2
        self._use(slots)
        others = self._place(np.arange(len(keys), dtype=np.int32))
        self._count = len(keys) - len(others)
        return others

    def number(self, group: str) -> int:
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = len(self._groups)
            self._groups.append(group)
        return number

    def _numbers_of(self, pages: Sequence[PageId]) -> Any:
        """Return the numbers of pages' groups: one for all, or each; `NONE` for an unknown one."""
        groups = set(map(_group, pages))
        if len(groups) == 1:
            return self._numbers.get(groups.pop(), NONE)
        numbers = map(self._numbers.get, map(_group, pages), repeat(NONE))
        return np.fromiter(numbers, np.int64, len(pages))

    def _use(self, slots: int) -> None:
        """Have so many slots, all of them free: a power of two."""
        self._column = np.full(slots, NONE, np.int32)
        # Read one by one it is twice as quick as the array.
        self._slots = memoryview(cast(Any, self._column))
        self._mask = slots - 1

    def _widen(self) -> None:
        rows = self._column[self._column != NONE]
        self._use(2 * len(self._column))
        self._place(rows)

    def _place(self, rows: Rows) -> list[tuple[int, int]]:
        """Give rows their slots, in a few passes over those that have none yet; return the rows of
        pages that have one already, each beside that one."""
        others: list[tuple[int, int]] = []
        slots, at = self._column, self._marks[rows] & np.uint32(self._mask)
        while len(rows):
            free = slots[at] == NONE
            # Of several the last one has it.
            slots[at[free]] = rows[free]
            left = slots[at] != rows
            rows, at = rows[left], at[left]
            there = slots[at]
            alike = np.flatnonzero(self._marks[there] == self._marks[rows])
            pairs = zip(rows[alike].tolist(), there[alike].tolist(), strict=True)
            same = [self.page(row) == self.page(other) for row, other in pairs]
            if any(same):
                twins = alike[same]
                others += zip(rows[twins].tolist(), there[twins].tolist(), strict=True)
                rows, at = np.delete(rows, twins), np.delete(at, twins)
            at = (at + np.uint32(1)) & np.uint32(self._mask)
        return others
