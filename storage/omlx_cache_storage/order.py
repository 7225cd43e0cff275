"""The eviction order: least recently used, of equal stamps the deepest first.

Pages of one use share one stamp, so what is ordered is mostly stamps: a heap of them, and for each
a run of its records, which is sorted when it comes up.
"""

import heapq
from collections.abc import Generator, Iterator
from operator import attrgetter
from typing import Generic, TypeVar

from omlx_cache_storage.page import PageId

FEW = 1024
"""Stamps without a run that the heap may have beside those with one, before it is made anew."""


class Record:
    """A page as its tier knows it; a record is equal to itself alone.

    `hint` is the first bytes of the parent's key, and `stamp_ns` when the page was used: its table
    alone changes that.
    """

    __slots__ = ("hint", "id", "position", "stamp_ns", "tail")

    def __init__(self, page: PageId, position: int, hint: bytes, tail: bool) -> None:
        self.id = page
        self.position = position
        self.hint = hint
        self.tail = tail
        self.stamp_ns = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Return where the page stands in the order; the smallest leaves first."""
        return self.stamp_ns, -self.position


R = TypeVar("R", bound=Record)
_position = attrgetter("position")


class _Run(Generic[R]):
    """Records of one stamp. `_sorted` has them, the deepest last, beside some that have left the
    run; None until the run is looked at."""

    __slots__ = ("_sorted", "members")

    def __init__(self, *records: R) -> None:
        self.members = set(records)
        self._sorted: list[R] | None = None

    def add(self, record: R) -> None:
        self.members.add(record)
        known = self._sorted
        # One that left and comes again may not stand there twice.
        has_left = known is not None and len(known) != len(self.members) - 1
        if known and not has_left and known[-1].position <= record.position:
            known.append(record)
        else:
            self._sorted = None

    def remove(self, record: R) -> None:
        self.members.remove(record)
        if self._sorted and self._sorted[-1] is record:
            self._sorted.pop()

    def __iter__(self) -> Iterator[R]:
        """Yield the records, the deepest first."""
        if self._sorted is None:
            self._sorted = sorted(self.members, key=_position)
        return (record for record in reversed(self._sorted) if record in self.members)


class EvictionOrder(Generic[R]):
    """Orders records by their `rank`. Not thread-safe: its owner's lock guards it.

    `_runs` has a record itself where a stamp has one, which nearly all have after a restart.
    `_heap` has each of their stamps, perhaps twice, and some that no record has any more.
    """

    def __init__(self) -> None:
        self._runs: dict[int, R | _Run[R]] = {}
        self._heap: list[int] = []

    def add(self, record: R, stamp_ns: int) -> None:
        """Take a record that is not here."""
        record.stamp_ns = stamp_ns
        run = self._runs.get(stamp_ns)
        if run is None:
            self._runs[stamp_ns] = record
            heapq.heappush(self._heap, stamp_ns)
        elif isinstance(run, _Run):
            run.add(record)
        else:
            self._runs[stamp_ns] = _Run(run, record)

    def remove(self, record: R) -> None:
        """Remove a record that is here."""
        stamp_ns = record.stamp_ns
        run = self._runs[stamp_ns]
        if isinstance(run, _Run):
            run.remove(record)
            if run.members:
                return
        del self._runs[stamp_ns]
        if len(self._heap) > 2 * len(self._runs) + FEW:
            self._heap = sorted(self._runs)

    def walk(self) -> Generator[R, None, None]:
        """Yield records, the first to be evicted first. To be closed before the order changes.

        Costs O(log n) a stamp, and sorts its run the first time.
        """
        shown: list[int] = []
        try:
            while self._heap:
                stamp_ns = heapq.heappop(self._heap)
                run = self._runs.get(stamp_ns)
                if run is None or (shown and shown[-1] == stamp_ns):
                    continue
                shown.append(stamp_ns)
                if isinstance(run, _Run):
                    yield from run
                else:
                    yield run
        finally:
            for stamp_ns in shown:
                heapq.heappush(self._heap, stamp_ns)
