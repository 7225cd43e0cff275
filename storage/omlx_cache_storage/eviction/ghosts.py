"""When pages that have left were used last, for a while: so that a return counts as a use."""

from array import array

from omlx_cache_storage.page import PageId

SLOTS = 1 << 16
SLOT_BYTES = 16
_MARK_BITS = 64


class Ghosts:
    """Remembers stamps of pages that left: `SLOTS` at most, 16 bytes each, in one table.

    A page takes the slot that its key says, from whoever has it: no search, no growth. Not
    thread-safe: its owner's lock guards it.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._marks = array("Q", bytes(8 * slots))
        self._stamps = array("q", bytes(8 * slots))

    def add(self, page: PageId, stamp_ns: int) -> None:
        """Note a page that left, and when it was used last."""
        mark = _mark(page)
        slot = mark % self._slots
        self._marks[slot], self._stamps[slot] = mark, stamp_ns

    def take(self, page: PageId) -> int | None:
        """Return when a page that left was used last, and forget it; None when nobody knows."""
        mark = _mark(page)
        slot = mark % self._slots
        if self._marks[slot] != mark:
            return None
        self._marks[slot] = 0
        return self._stamps[slot]


def _mark(page: PageId) -> int:
    """Return a number for a page, never 0: Python's own hash, made once a key."""
    return hash(page) & (1 << _MARK_BITS) - 1 or 1
