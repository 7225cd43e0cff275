"""Memory that values are received into, used again for the next ones: to touch new memory takes
longer than to fill what was touched before."""

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SMALL_BYTES = 64 << 10
"""What is smaller comes from memory that is always touched."""
KEPT = 4
"""Slabs that lie unused while values come."""
_STEPS = 8
"""Sizes of slabs for each power of two: at most an eighth of one is not used."""

_Slab = npt.NDArray[np.uint8]


def new_memory(nbytes: int) -> memoryview:
    """Return memory that is used once."""
    return memoryview(bytearray(nbytes))


class Sink(NamedTuple):
    """Where an engine puts what it reads. `memory` returns so many writable bytes, `came` is told
    how many came whenever some did, of however large a value."""

    memory: Callable[[int], memoryview] = new_memory
    came: Callable[[int], object] = lambda nbytes: None


NEW_MEMORY = Sink()


class Slabs:
    """Lends memory; what nobody refers to any more is lent again, between `keep` and `clear`. Any
    thread.

    A view of lent memory, and whatever was made of it, keeps it lent. Mutable: `_free`, `_lent` by
    the identity of what was lent, and `_keeps`. They are changed by single operations and without a
    lock: a view may end anywhere, also where a lock is held, and in the middle of a collection.
    """

    def __init__(self) -> None:
        self._free: deque[_Slab] = deque(maxlen=KEPT)
        self._lent: dict[int, tuple[weakref.ref[_Slab], _Slab]] = {}
        self._keeps = True

    @property
    def free_bytes(self) -> int:
        return sum(slab.nbytes for slab in self._free.copy())

    def memory(self, nbytes: int) -> memoryview:
        if nbytes < SMALL_BYTES:
            return new_memory(nbytes)
        slab = self._unused(_size(nbytes))
        lent = slab[:nbytes]
        number = id(lent)
        self._lent[number] = weakref.ref(lent, lambda _: self._take_back(number)), slab
        return lent.data

    def keep(self) -> None:
        """Keep what is not used from now on."""
        self._keeps = True

    def clear(self) -> None:
        """Keep nothing that is not used, now or later."""
        self._keeps = False
        self._free.clear()

    def _unused(self, size: int) -> _Slab:
        with suppress(IndexError):
            for _ in range(KEPT):
                slab = self._free.pop()
                if slab.nbytes == size:
                    return slab
                self._free.appendleft(slab)
        return np.empty(size, np.uint8)

    def _take_back(self, number: int) -> None:
        _, slab = self._lent.pop(number)
        if self._keeps:
            self._free.append(slab)


def _size(nbytes: int) -> int:
    """Return how long a slab for so many bytes is."""
    step = max(1, 1 << (nbytes.bit_length() - 1)) // _STEPS
    return -(-nbytes // step) * step
