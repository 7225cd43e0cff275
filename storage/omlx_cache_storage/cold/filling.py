"""Page files on their way into an index: columns, with no object for a file but its key."""

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.cold.records import StoredPage
from omlx_cache_storage.format.names import PARENT_HINT_BYTES, PageName
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import cut
from omlx_cache_storage.page import PageId


class Files:
    """Takes files one by one; of two of one page it keeps the one that holds more, and of equal
    ones the later one. A file's number is its place in every column."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[BlockKey, int]] = {}
        self.keys: list[BlockKey] = []
        self.namespaces: dict[BlockKey, int] = {}
        self._hints = array("Q")
        self._tails = array("B")
        self._namespace = array("I")
        self._columns = tuple(array("q") for _ in range(4))

    @classmethod
    def of(cls, files: Iterable[tuple[StoredPage, int]]) -> "Files":
        taken = cls()
        for stored, stamp_ns in files:
            taken.take(stored, stamp_ns)
        return taken

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, stored: StoredPage, stamp_ns: int) -> StoredPage | None:
        """Take a file; return the one that is of no use because of another, None without one."""
        namespace, ((key, group), hint, position, held, tail), nbytes = stored
        numbers = self.numbers.get(group)
        if numbers is None:
            numbers = self.numbers[group] = {}
        count = len(self.keys)
        number = numbers.setdefault(key, count)
        values = position, held, nbytes, cut(stamp_ns)
        known = self.namespaces.setdefault(namespace, len(self.namespaces))
        if number == count:
            self.keys.append(key)
            self._hints.append(int.from_bytes(hint, "big"))
            self._tails.append(tail)
            self._namespace.append(known)
            for column, value in zip(self._columns, values, strict=True):
                column.append(value)
            return None
        _, old_held, _, old_stamp = (column[number] for column in self._columns)
        if (held, values[-1]) <= (old_held, old_stamp):
            return stored
        other = self._stored(number, PageId(key, group))
        self._hints[number] = int.from_bytes(hint, "big")
        self._tails[number] = tail
        self._namespace[number] = known
        for column, value in zip(self._columns, values, strict=True):
            column[number] = value
        return other

    @property
    def hints(self) -> npt.NDArray[np.uint64]:
        return _numbers(self._hints)

    @property
    def tails(self) -> npt.NDArray[np.bool_]:
        return _numbers(self._tails).astype(np.bool_)

    @property
    def namespace(self) -> npt.NDArray[np.uint32]:
        return _numbers(self._namespace)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        return _numbers(self._columns[0])

    @property
    def held(self) -> npt.NDArray[np.int64]:
        return _numbers(self._columns[1])

    @property
    def nbytes(self) -> npt.NDArray[np.int64]:
        return _numbers(self._columns[2])

    @property
    def stamps(self) -> npt.NDArray[np.int64]:
        return _numbers(self._columns[3])

    def _stored(self, number: int, page: PageId) -> StoredPage:
        hint = self._hints[number].to_bytes(PARENT_HINT_BYTES, "big")
        position, held, nbytes, _ = (column[number] for column in self._columns)
        name = PageName(page, hint, position, held, bool(self._tails[number]))
        return StoredPage([*self.namespaces][self._namespace[number]], name, nbytes)


def _numbers(values: "array[int]") -> npt.NDArray[Any]:
    return np.frombuffer(values, values.typecode) if values else np.empty(0, values.typecode)
