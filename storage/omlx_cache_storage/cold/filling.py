"""Page files on their way into an index: columns of numbers, and no object for a file."""

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from omlx_cache_storage.cold.contents import Files
from omlx_cache_storage.format.names import PARENT_HINT_BYTES, PageName, StoredPage
from omlx_cache_storage.index import KEY_BYTES, Column, PageIndex
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import cut

File = tuple[BlockKey, PageName, int]
"""A page file's namespace, name and physical bytes: what a `StoredPage` is."""
STAGED = 1 << 14
"""Files that wait as rows before they become columns: together that is quick."""
_KINDS: tuple[Any, ...] = (
    np.int64,  # hint
    np.int64,  # position
    np.int64,  # held
    np.int64,  # bytes
    np.int64,  # stamp
    np.bool_,  # tail
    np.uint32,  # namespace
    np.uint8,  # the key's length
    np.uint32,  # group
    np.uint32,  # mark
)
_HINT, _POSITION, _HELD, _NBYTES, _STAMP, _TAIL, _NAMESPACE, _LENGTH, _GROUP, _MARK = range(10)


class Filling:
    """Takes files one by one; of two of one page it keeps the one that holds more, and of equal
    ones the later one.

    `_rows` and `_raw` have the files that are not in the columns yet. All of it is plain numbers in
    a few large buffers: freed, their memory goes back to the system.
    """

    def __init__(self) -> None:
        self._namespaces: dict[BlockKey, int] = {}
        self._groups: dict[str, int] = {}
        self._rows = array("q")
        self._raw = bytearray()
        self._columns: list[Column] = [np.zeros(0, kind) for kind in _KINDS]
        self._keys: Column = np.zeros(0, np.dtype((np.void, KEY_BYTES)))
        self._count = 0

    def take(self, file: File, stamp_ns: int) -> None:
        """Take a file."""
        namespace, (page, hint, position, held, tail), nbytes = file
        key, group = page
        length = len(key)
        self._raw += key if length == KEY_BYTES else key.ljust(KEY_BYTES, b"\0")
        self._rows.extend(
            (
                int.from_bytes(hint, "big", signed=True),
                position,
                held,
                nbytes,
                cut(stamp_ns),
                tail,
                self._namespaces.setdefault(namespace, len(self._namespaces)),
                length,
                self._groups.setdefault(group, len(self._groups)),
                hash(page),
            )
        )
        if len(self._raw) >= STAGED * KEY_BYTES:
            self._settle()

    def finish(self) -> tuple[Files, list[StoredPage]]:
        """Return the files as columns, and those that are of no use because of another one; to be
        called once."""
        self._settle()
        for column in (self._keys, *self._columns):
            column.resize(self._count, refcheck=False)
        index, others = self._index()
        useless: list[StoredPage] = []
        if others:
            useless = self._drop(index, others)
            index, _ = self._index()
        columns = self._columns
        files = Files(
            index,
            self._namespaces,
            columns[_HINT].view(np.uint64),
            columns[_POSITION],
            columns[_HELD],
            columns[_NBYTES],
            columns[_STAMP],
            columns[_TAIL],
            columns[_NAMESPACE],
        )
        return files, useless

    def _settle(self) -> None:
        """Move what waits into the columns."""
        staged = len(self._raw) // KEY_BYTES
        if not staged:
            return
        first, self._count = self._count, self._count + staged
        if self._count > len(self._keys):
            room = self._count + self._count // 8
            for column in (self._keys, *self._columns):
                column.resize(room, refcheck=False)
        rows = np.frombuffer(self._rows, np.int64).reshape(staged, len(_KINDS))
        for number, column in enumerate(self._columns):
            column[first : self._count] = rows[:, number]
        self._keys[first : self._count] = np.frombuffer(self._raw, self._keys.dtype)
        self._rows, self._raw = array("q"), bytearray()

    def _index(self) -> tuple[PageIndex, list[tuple[int, int]]]:
        """Return an index of all files, and the rows of a page's other files beside the one that
        it finds."""
        index, columns = PageIndex(), self._columns
        others = index.fill(
            self._keys, columns[_LENGTH], list(self._groups), columns[_GROUP], columns[_MARK]
        )
        return index, others

    def _drop(self, index: PageIndex, others: list[tuple[int, int]]) -> list[StoredPage]:
        """Keep one file of each page; return the others."""
        files: dict[int, list[int]] = {}
        for row, found in others:
            files.setdefault(found, [found]).append(row)
        useless: list[int] = []
        for rows in files.values():
            best, *later = sorted(rows)
            for row in later:
                better, worse = (row, best) if self._worth(row) > self._worth(best) else (best, row)
                best = better
                useless.append(worse)
        dropped = [self._stored(index, row) for row in useless]
        self._keys = np.delete(self._keys, useless)
        self._columns = [np.delete(column, useless) for column in self._columns]
        return dropped

    def _worth(self, row: int) -> tuple[int, int]:
        return self._columns[_HELD].item(row), self._columns[_STAMP].item(row)

    def _stored(self, index: PageIndex, row: int) -> StoredPage:
        hint, position, held, nbytes, _, tail, namespace, *_ = (c.item(row) for c in self._columns)
        parent = hint.to_bytes(PARENT_HINT_BYTES, "big", signed=True)
        name = PageName(index.page(row), parent, position, held, tail)
        return StoredPage([*self._namespaces][namespace], name, nbytes)


def filled(files: Iterable[tuple[File, int]]) -> Files:
    """Return files with their stamps as columns."""
    filling = Filling()
    for file, stamp_ns in files:
        filling.take(file, stamp_ns)
    return filling.finish()[0]
