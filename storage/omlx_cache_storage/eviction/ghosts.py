"""When pages that have left were used last, for a while: so that a return counts as a use."""

from array import array
from collections.abc import Sequence

import numpy as np

from omlx_cache_storage.page import PageId

SLOTS = 1 << 16
SHORT = 8
"""Pages that are gone through one by one more quickly than as an array."""


class Ghosts:
    """Remembers stamps of pages that left: `SLOTS` at most, 16 bytes each, in one table.

    A page takes the slot that its key says, from whoever has it: no search, no growth. Its mark is
    Python's own hash, 0 where there is no page. Not thread-safe: its owner's lock guards it.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._marks = array("q", bytes(8 * slots))
        self._stamps = array("q", bytes(8 * slots))

    def add(self, pages: Sequence[PageId], stamp_ns: int) -> None:
        """Note pages that left, and when they were used last."""
        if len(pages) > SHORT:
            marks = np.fromiter(map(hash, pages), np.int64, len(pages))
            slots = marks % self._slots
            # Of several with one slot the last one has it, in both columns.
            np.frombuffer(self._marks, np.int64)[slots] = marks
            np.frombuffer(self._stamps, np.int64)[slots] = stamp_ns
            return
        for mark in map(hash, pages):
            slot = mark % self._slots
            self._marks[slot], self._stamps[slot] = mark, stamp_ns

    def take(self, pages: Sequence[PageId]) -> list[int]:
        """Return when those of the pages that are known were used last, and forget them."""
        if len(pages) > SHORT:
            marks = np.fromiter(map(hash, pages), np.int64, len(pages))
            kept = np.frombuffer(self._marks, np.int64)
            slots = marks % self._slots
            # Each slot once, for pages that are named twice.
            slots = np.unique(slots[(kept[slots] == marks) & (marks != 0)])
            kept[slots] = 0
            stamps: list[int] = np.frombuffer(self._stamps, np.int64)[slots].tolist()
            return stamps
        found = []
        for mark in map(hash, pages):
            slot = mark % self._slots
            if mark and self._marks[slot] == mark:
                self._marks[slot] = 0
                found.append(self._stamps[slot])
        return found
