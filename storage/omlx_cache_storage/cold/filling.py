"""Page files on their way into an index: rows of numbers, with no object for a file but its key."""

from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.format.names import PARENT_HINT_BYTES, PageName
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import cut
from omlx_cache_storage.page import PageId

Integers = npt.NDArray[np.int64]
File = tuple[BlockKey, PageName, int]
"""A page file's namespace, name and physical bytes: what a `StoredPage` is."""
_HINT, _POSITION, _HELD, _NBYTES, _STAMP, _TAIL, _NAMESPACE = range(7)
_WIDTH = 7


class Files:
    """Takes files one by one; of two of one page it keeps the one that holds more, and of equal
    ones the later one. `numbers` has each file's row, by group and key."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[BlockKey, int]] = {}
        self.namespaces: dict[BlockKey, int] = {}
        # One buffer, and of plain numbers: freed, its memory goes back to the system.
        self._rows = array("q")

    @classmethod
    def of(cls, files: Iterable[tuple[File, int]]) -> "Files":
        """Take files with their stamps."""
        taken = cls()
        for file, stamp_ns in files:
            taken.take(file, stamp_ns)
        return taken

    def __len__(self) -> int:
        return len(self._rows) // _WIDTH

    def take(self, file: File, stamp_ns: int) -> File | None:
        """Take a file; return the one that is of no use because of another, None without one."""
        namespace, ((key, group), hint, position, held, tail), nbytes = file
        numbers = self.numbers.get(group)
        if numbers is None:
            numbers = self.numbers[group] = {}
        count = len(self)
        number = numbers.setdefault(key, count)
        known = self.namespaces.setdefault(namespace, len(self.namespaces))
        sign = int.from_bytes(hint, "big", signed=True)
        row = (sign, position, held, nbytes, cut(stamp_ns), tail, known)
        if number == count:
            self._rows.extend(row)
            return None
        at = slice(number * _WIDTH, (number + 1) * _WIDTH)
        old = self._rows[at]
        if (held, row[_STAMP]) <= (old[_HELD], old[_STAMP]):
            return file
        self._rows[at] = array("q", row)
        return self._file(PageId(key, group), old)

    @property
    def hints(self) -> npt.NDArray[np.uint64]:
        return self._column(_HINT).view(np.uint64)

    @property
    def positions(self) -> Integers:
        return self._column(_POSITION)

    @property
    def held(self) -> Integers:
        return self._column(_HELD)

    @property
    def nbytes(self) -> Integers:
        return self._column(_NBYTES)

    @property
    def stamps(self) -> Integers:
        return self._column(_STAMP)

    @property
    def tails(self) -> npt.NDArray[np.bool_]:
        return self._column(_TAIL).astype(np.bool_)

    @property
    def namespace(self) -> Integers:
        return self._column(_NAMESPACE)

    def _column(self, number: int) -> Integers:
        """Return a view of a column."""
        if not self._rows:
            return np.empty(0, np.int64)
        column: Integers = np.frombuffer(self._rows, np.int64).reshape(-1, _WIDTH)[:, number]
        return column

    def _file(self, page: PageId, row: "array[int]") -> File:
        hint = row[_HINT].to_bytes(PARENT_HINT_BYTES, "big", signed=True)
        name = PageName(page, hint, row[_POSITION], row[_HELD], bool(row[_TAIL]))
        return [*self.namespaces][row[_NAMESPACE]], name, row[_NBYTES]
