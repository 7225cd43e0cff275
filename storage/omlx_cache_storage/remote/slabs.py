"""Memory that values are received into, used again for the next ones: to touch new memory takes
longer than to fill what was touched before."""

import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Room = Callable[[int], memoryview]
"""Returns writable memory of so many bytes; raises MemoryError when there is none."""

SMALL_BYTES = 64 << 10
"""What is smaller comes from memory that is always touched."""
KEPT_BYTES = 16 << 20
_STEPS = 8
"""Sizes of slabs for each power of two: at most an eighth of one is not used."""

_Slab = npt.NDArray[np.uint8]


def new_room(nbytes: int) -> memoryview:
    """Return memory that is used once."""
    return memoryview(bytearray(nbytes))


class Slabs:
    """Lends memory; what nobody refers to any more is lent again. Any thread.

    A view of lent memory, and whatever was made of it, keeps it lent. `kept_bytes` is what may lie
    unused; `clear` gives that back. Mutable: `_free` by size and `_lent` by the identity of what
    was lent. Both are changed by single operations of a dictionary or a list, without a lock: a
    view may end anywhere, also where a lock is held.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._free: dict[int, list[_Slab]] = {}
        self._lent: dict[int, tuple[weakref.ref[_Slab], _Slab]] = {}

    @property
    def free_bytes(self) -> int:
        return sum(size * len(slabs) for size, slabs in list(self._free.items()))

    def room(self, nbytes: int) -> memoryview:
        if nbytes < SMALL_BYTES:
            return new_room(nbytes)
        size = _size(nbytes)
        try:
            slab = self._free[size].pop()
        except (KeyError, IndexError):
            slab = np.empty(size, np.uint8)
        lent = slab[:nbytes]
        number = id(lent)
        self._lent[number] = weakref.ref(lent, lambda _: self._take_back(number)), slab
        return lent.data

    def clear(self) -> None:
        """Keep nothing unused."""
        self._free.clear()

    def _take_back(self, number: int) -> None:
        _, slab = self._lent.pop(number)
        if self.free_bytes + slab.nbytes <= self._kept_bytes:
            self._free.setdefault(slab.nbytes, []).append(slab)


def _size(nbytes: int) -> int:
    """Return how long a slab for so many bytes is."""
    step = max(1, 1 << (nbytes.bit_length() - 1)) // _STEPS
    return -(-nbytes // step) * step
