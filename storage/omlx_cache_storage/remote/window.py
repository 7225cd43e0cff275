"""What is expected of a remote store, what was asked for and has come, and how much of it may lie
there at once."""

from collections import deque
from collections.abc import Callable, Sequence

from omlx_cache_storage.errors import PageNotSent, PageUnreadable
from omlx_cache_storage.page import Buffer, PageId
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.coming import (
    TORN,
    Coming,
    Expected,
    Unit,
    Wanted,
    length_said_by,
    parts_of,
)
from omlx_cache_storage.remote.lanes import Pace
from omlx_cache_storage.remote.slabs import Slabs

WINDOW_BYTES = 64 << 20
"""Bytes that were asked for and not taken yet; a reader's own page comes whatever they are."""
WINDOW_PAGES = 2
"""So many pages come whatever they are, too: one is read while the next one comes."""
TOGETHER_BYTES = 6 << 20
TOGETHER = 32
"""What one connection asks for in one pipeline: a page of 4 MiB with what lies around it in one."""
PART_BYTES = 8 << 20
"""Stretches of a large value that several connections bring at once."""


class Window:
    """Values that are expected or taken, in order, and the memory of those that were begun. Not
    thread-safe: its owner's lock guards it, and all that it has.

    `engine_part_bytes` is the engine's; without one it reads any stretch. `staying` are those
    expected that nobody ends but its owner. `slabs` is where values are received into.
    """

    def __init__(self, nbytes: int, engine_part_bytes: int | None, pace: Pace) -> None:
        self._nbytes = nbytes
        self._cut = engine_part_bytes is not None
        self._part_bytes = engine_part_bytes or PART_BYTES
        self._pace = pace
        self.slabs = Slabs()
        self.staying: list[Expected] = []
        self.peak_bytes = 0
        self._open: list[Expected] = []
        self._urgent: deque[Coming] = deque()
        self._begun: set[Coming] = set()
        self._held = 0

    @property
    def held_bytes(self) -> int:
        """What was begun and not given back, and memory that waits for the next value."""
        return self._held + self.slabs.free_bytes

    @property
    def waiting(self) -> int:
        """How many values have parts to be asked for, at most."""
        return len(self._urgent) + sum(len(expected.queue) for expected in self._open)

    def expect(self, expected: Expected, wanted: Sequence[Wanted]) -> None:
        """Have values come in this order; those that stay have come."""
        there = {page for one in self.staying for page in one.coming}
        for one in wanted:
            if one.page not in expected.coming and one.page not in there:
                expected.queue.append(self._add(expected, one))
        self._open.append(expected)

    def take(self, wanted: Wanted, *, stays: bool, end: Callable[[Expected], None]) -> Coming:
        """Return the value that comes, or is to come now, for somebody who waits for it."""
        coming = self.find(wanted.page)
        if coming is None:
            expected = Expected(end)
            coming = self._add(expected, wanted)
            if stays:
                self._open.insert(0, expected)
                self.staying.append(expected)
        coming.taken = True
        if coming.todo:
            self._urgent.append(coming)
        return coming

    def close(self, expected: Expected) -> bool:
        """Have no more come of what nobody waits for; return whether it stayed."""
        expected.closed = True
        stayed = expected in self.staying
        if stayed:
            self.staying.remove(expected)
        expected.queue.clear()
        if expected in self._open:
            self._open.remove(expected)
        for coming in list(expected.coming.values()):
            if not coming.taken:
                self.settle(coming, PageNotSent(reasons.LOST, "nobody wanted it any more"))
                self.release(coming)
        return stayed

    def everything(self) -> set[Expected]:
        """Return all that somebody expects or waits for."""
        return {*self._open, *(coming.expected for coming in (*self._begun, *self._urgent))}

    def fail(self, expected: Expected, error: PageUnreadable) -> None:
        """Let nothing more come of what is expected."""
        expected.queue.clear()
        for coming in expected.coming.values():
            self.settle(coming, error)
            self._give_back(coming)

    def check_integrity(self) -> None:
        """Assert that the books agree with the values."""
        assert self._held == sum(coming.held for coming in self._begun)
        assert all(coming.held for coming in self._begun)

    def find(self, page: PageId) -> Coming | None:
        """Return a value that comes, or has come, and that nobody has taken."""
        for expected in self._open:
            coming = expected.coming.get(page)
            if coming is not None and not coming.taken:
                return coming
        return None

    def settle(self, coming: Coming, error: PageUnreadable | None) -> None:
        """Wake whoever waits for a value, unless that was done."""
        if coming.future.done():
            return
        coming.todo.clear()
        if error is not None:
            coming.future.set_exception(error)
        else:
            coming.future.set_result([one for one in coming.slots if one is not None])

    def release(self, coming: Coming) -> None:
        """Give a value's memory back, and know it no more."""
        self._give_back(coming)
        coming.slots = []
        if coming.expected.coming.get(coming.wanted.page) is coming:
            del coming.expected.coming[coming.wanted.page]

    def _give_back(self, coming: Coming) -> None:
        if coming.held:
            self._held -= coming.held
            self._begun.remove(coming)
            coming.held = 0
            if not self._begun:
                self.slabs.clear()

    def _begin(self, coming: Coming) -> bool:
        """Make room for a value; False when the window is full."""
        more = coming.nbytes - coming.held
        if not coming.held and not coming.taken and not self._has_room(more):
            return False
        self._begun.add(coming)
        self.slabs.keep()
        self._held += more
        coming.held += more
        self.peak_bytes = max(self.peak_bytes, self._held)
        return True

    def _has_room(self, nbytes: int) -> bool:
        """Return whether a value may be there too: while one lot is taken the next one comes. What
        stays takes no part in that."""
        stays = [one.held for expected in self.staying for one in expected.coming.values()]
        if len(self._begun) - sum(held > 0 for held in stays) < WINDOW_PAGES:
            return True
        room = min(self._nbytes, 2 * self._pace.width * TOGETHER_BYTES)
        return self._held - sum(stays) + nbytes <= room

    def next(self) -> list[Unit]:
        """Return what one connection asks for next, [] when there is nothing, or no room: what
        somebody waits for, and what is expected behind it; then what was expected first."""
        while self._urgent and not self._urgent[0].todo:
            self._urgent.popleft()
        if self._urgent:
            return self._batch(self._urgent[0].expected, self._urgent[0])
        for expected in self._open:
            if batch := self._batch(expected, None):
                return batch
        return []

    def _batch(self, expected: Expected, first: Coming | None) -> list[Unit]:
        batch: list[Unit] = []
        nbytes = 0
        while len(batch) < TOGETHER:
            while expected.queue and not expected.queue[0].todo:
                expected.queue.popleft()
            if first is not None and first.todo:
                coming = first
            elif expected.queue:
                coming = expected.queue[0]
            else:
                break
            unit = Unit(coming, coming.todo[0])
            if batch and nbytes + unit.cost > TOGETHER_BYTES:
                break
            if not self._begin(coming):
                break
            coming.todo.popleft()
            batch.append(unit)
            nbytes += unit.cost
        return batch

    def put(self, unit: Unit, part: Buffer | None) -> None:
        """Take a part that came, or did not."""
        coming = unit.coming
        if coming.future.done():
            return
        if part is None:
            # An engine's own parts are values, of which the store evicts each by itself.
            torn = unit.at > 0 and self._cut
            self.settle(coming, PageNotSent(reasons.LOST, TORN if torn else "it was evicted"))
            return
        coming.slots[unit.at] = part
        coming.left -= 1
        if not coming.wanted.nbytes and unit.at == 0:
            self._ask_for_the_rest(coming, part)
        if not coming.left:
            self.settle(coming, None)

    def _ask_for_the_rest(self, coming: Coming, first: Buffer) -> None:
        """Ask for what follows the first part of a value whose length was not known."""
        if memoryview(first).nbytes < self._part_bytes:
            return
        nbytes = length_said_by(first)
        coming.add(parts_of(coming.wanted.name, nbytes, self._part_bytes, 1) if nbytes else [])
        if coming.taken and coming.todo:
            self._urgent.append(coming)
        elif coming.todo:
            coming.expected.queue.appendleft(coming)

    def _add(self, expected: Expected, wanted: Wanted) -> Coming:
        parts = parts_of(wanted.name, wanted.nbytes, self._part_bytes)
        coming = expected.coming[wanted.page] = Coming(wanted, expected, parts)
        return coming
