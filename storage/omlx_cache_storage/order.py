"""The eviction order over rows of a table: least recently used, of equal stamps the deepest first.

Pages of one use share one stamp, so what is ordered is mostly stamps: a heap of those that were
given lately, each with its rows, beside all other rows in one sorted array. A place that a page has
left stays until it comes up, or until the changes are as many as a quarter of the pages; then
everything is merged into the array, in one pass. No object is kept for a page.
"""

import heapq
from array import array
from collections.abc import Generator, Iterator

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]

FREE = -(1 << 63)
"""The stamp of a row without a page."""
FURTHEST = 1 << 62
"""Stamps of files may be anything; further from the epoch than this they are cut."""
FEW = 1024
"""Places left behind that are not worth a merge."""
MANY = 1 << 16
"""Places left behind that are worth one always: a merge sorts as many, which nobody notices."""
MANY_TIES = 256
"""Stamps on both sides of a merge from which on sorting everything is quicker."""
SHORT = 4
"""Rows that are moved one by one more quickly than as an array."""
CHUNK = 16
"""Rows that are looked at together, at first; then twice as many each time."""
LARGEST_CHUNK = 4096


class EvictionOrder:
    """An order over row numbers. Not thread-safe: its owner's lock guards it.

    The first `_left` of `_sorted` are the settled rows, the first to be evicted last; `_runs` has
    the others by stamp, and `_heap` their stamps. `_ascending` has the runs whose rows are known to
    be in the order of their positions, with the deepest one's. `_loose` counts what was added to
    runs or removed since the last merge. A place is valid while the row has its stamp and is
    settled as it says.
    """

    def __init__(self) -> None:
        self.stamps = np.empty(0, np.int64)
        self.positions = np.empty(0, np.int64)
        self._settled = np.empty(0, np.bool_)
        self._sorted: Rows = np.empty(0, np.int32)
        self._left = 0
        self._runs: dict[int, int | array[int]] = {}
        self._heap: list[int] = []
        self._ascending: dict[int, int] = {}
        self._loose = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    @property
    def places(self) -> int:
        """How many places are kept, left ones included."""
        runs = sum(1 if isinstance(run, int) else len(run) for run in self._runs.values())
        return len(self._sorted) + runs

    def grow(self, rows: int) -> None:
        """Make room for so many rows."""
        before = len(self.stamps)
        for column in (self.stamps, self.positions, self._settled):
            column.resize(rows, refcheck=False)
        self.stamps[before:] = FREE

    def fill(self, positions: npt.NDArray[np.int64], stamps: npt.NDArray[np.int64]) -> None:
        """Take the first rows at once, into an empty order that has room for them."""
        count = len(stamps)
        self.positions[:count] = positions
        self.stamps[:count] = stamps
        self._settled[:count] = True
        self._live = count
        self._sorted, self._left = self._front_last(np.arange(count, dtype=np.int32)), count

    def add(self, row: int, position: int, stamp_ns: int) -> None:
        """Take a row that is free."""
        stamp_ns = cut(stamp_ns)
        self._live += 1
        self.positions[row] = position
        self.stamps[row] = stamp_ns
        self._settled[row] = False
        self._append_one(stamp_ns, row, position)

    def move(self, rows: list[int], stamp_ns: int) -> npt.NDArray[np.int64]:
        """Give rows a stamp, and return the ones that they had."""
        stamp_ns = cut(stamp_ns)
        if len(rows) <= SHORT:
            return np.array([self._move(row, stamp_ns) for row in rows], np.int64)
        at = np.array(rows, np.intp)
        before = self.stamps[at]
        moved = at[before != stamp_ns]
        if len(moved):
            self.stamps[moved] = stamp_ns
            self._settled[moved] = False
            positions = self.positions[moved]
            rising = bool((positions[1:] >= positions[:-1]).all())
            first = int(positions[0]) if rising else -1
            self._append(stamp_ns, moved.tolist(), first, int(positions[-1]))
            self._merge_if_loose()
        return before

    def remove(self, row: int) -> None:
        self.stamps[row] = FREE
        self._settled[row] = False
        self._live -= 1
        self._loose += 1

    def is_here(self, row: int) -> bool:
        return self.stamps.item(row) != FREE

    def stamp(self, row: int) -> int:
        return self.stamps.item(row)

    def rank(self, row: int) -> tuple[int, int]:
        """Return where a row stands; the smallest leaves first."""
        return self.stamps.item(row), -self.positions.item(row)

    def ordered(self) -> Rows:
        """Return all rows, the first to be evicted first."""
        return self._front_last(self.rows())[::-1]

    def settled(self) -> Rows:
        """Return all rows, the first to be evicted last: a view, valid until one changes.

        Merges what has changed, in one pass; not to be called during a walk.
        """
        if self._loose:
            self._merge()
        return self._sorted[: self._left]

    def walk(self) -> Generator[int, None, None]:
        """Yield rows, the first to be evicted first. To be closed before the order changes.

        Costs O(log n) a row, besides what it passes over; that is bounded by the places kept.
        """
        shown: list[int] = []
        settled = self._walk_settled()
        try:
            stamp, row = next(settled, (None, 0))
            while True:
                front = self._front()
                while stamp is not None and (front is None or stamp < front):
                    yield row
                    stamp, row = next(settled, (None, 0))
                if front is None:
                    return
                while stamp == front:
                    # The same stamp on both sides: only together they have an order.
                    self._settled[row] = False
                    self._append(front, [row], -1, -1)
                    stamp, row = next(settled, (None, 0))
                self._sort(front)
                shown.append(heapq.heappop(self._heap))
                yield from self._walk_run(front)
        finally:
            for front in shown:
                heapq.heappush(self._heap, front)

    def rows(self) -> Rows:
        """Return all rows, in no order."""
        return np.flatnonzero(self.stamps != FREE).astype(np.int32)

    def _front_last(self, rows: Rows) -> Rows:
        return rows[np.lexsort((self.positions[rows], -self.stamps[rows]))]

    def _move(self, row: int, stamp_ns: int) -> int:
        before: int = self.stamps.item(row)
        if before != stamp_ns:
            self.stamps[row] = stamp_ns
            self._settled[row] = False
            self._append_one(stamp_ns, row, self.positions.item(row))
        return before

    def _append_one(self, stamp: int, row: int, position: int) -> None:
        """Add a row to a run."""
        run = self._runs.get(stamp)
        if isinstance(run, array):
            run.append(row)
            last = self._ascending.get(stamp)
            if last is not None and last <= position:
                self._ascending[stamp] = position
            elif last is not None:
                del self._ascending[stamp]
            self._loose += 1
        else:
            self._append(stamp, [row], position, position)
        self._merge_if_loose()

    def _append(self, stamp: int, rows: list[int], first: int, last: int) -> None:
        """Add rows to a run, whose positions rise from `first` to `last`; -1: they may not."""
        run = self._runs.get(stamp)
        if run is None:
            heapq.heappush(self._heap, stamp)
            self._runs[stamp] = rows[0] if len(rows) == 1 else array("i", rows)
            if first >= 0 and len(rows) > 1:
                self._ascending[stamp] = last
        elif isinstance(run, int):
            self._runs[stamp] = array("i", [run, *rows])
        else:
            run.extend(rows)
            if stamp in self._ascending:
                if first >= self._ascending[stamp]:
                    self._ascending[stamp] = last
                else:
                    del self._ascending[stamp]
        self._loose += len(rows)

    def _merge_if_loose(self) -> None:
        """Settle every row when enough has changed."""
        if self._loose > min(self._live // 4 + FEW, MANY):
            self._merge()

    def _merge(self) -> None:
        old = self._sorted[: self._left]
        old = old[self._settled[old]]
        recent = self._front_last(
            np.flatnonzero(~self._settled & (self.stamps != FREE)).astype(np.int32)
        )
        # Ascending, as `searchsorted` wants them: the front is last.
        ages, new_ages = -self.stamps[old], -self.stamps[recent]
        at = np.searchsorted(ages, new_ages, side="right")
        merged = np.insert(old, at, recent)
        shared = new_ages[(at > 0) & (ages[at - 1] == new_ages)] if len(ages) else new_ages[:0]
        ties = np.unique(shared)
        if len(ties) > MANY_TIES:
            merged = self._front_last(merged)
        elif len(ties):
            all_ages = -self.stamps[merged]
            for age in ties:
                one = slice(*np.searchsorted(all_ages, [age, age + 1]))
                merged[one] = merged[one][np.argsort(self.positions[merged[one]], kind="stable")]
        self._sorted, self._left = merged, len(merged)
        self._settled[merged] = True
        self._runs.clear()
        self._heap.clear()
        self._ascending.clear()
        self._loose = 0

    def _front(self) -> int | None:
        """Return the first stamp of the runs that has a row still; forget those before it."""
        while self._heap:
            stamp = self._heap[0]
            run = self._runs[stamp]
            if isinstance(run, int):
                if self._has(run, stamp):
                    return stamp
            else:
                while run and not self._has(run[-1], stamp):
                    run.pop()
                if run:
                    return stamp
            heapq.heappop(self._heap)
            del self._runs[stamp]
            self._ascending.pop(stamp, None)
        return None

    def _has(self, row: int, stamp: int) -> bool:
        """True when a place in a run is valid."""
        return self.stamps.item(row) == stamp and not self._settled.item(row)

    def _sort(self, stamp: int) -> None:
        """Bring the rows of a run into the order of their positions, the deepest last."""
        run = self._runs[stamp]
        if not isinstance(run, int) and stamp not in self._ascending:
            rows = np.unique(np.array(run, np.int32))
            rows = rows[self._are_of(rows, stamp)]
            positions = self.positions[rows]
            at = np.argsort(positions, kind="stable")
            self._runs[stamp] = array("i", rows[at].tobytes())
            self._ascending[stamp] = int(positions[at[-1]])

    def _are_of(self, rows: Rows, stamp: int) -> npt.NDArray[np.bool_]:
        are_of: npt.NDArray[np.bool_] = (self.stamps[rows] == stamp) & ~self._settled[rows]
        return are_of

    def _walk_run(self, stamp: int) -> Iterator[int]:
        """Yield the rows of a run whose last place is valid, the last first, each once."""
        run = self._runs[stamp]
        if isinstance(run, int):
            yield run
            return
        # Most visitors want no more than this.
        yield run[-1]
        seen = {run[-1]}
        for start, stop in _chunks(len(run) - 1):
            rows = np.array(run[start:stop], np.int32)[::-1]
            for row in rows[self._are_of(rows, stamp)].tolist():
                if row not in seen:
                    seen.add(row)
                    yield row

    def _walk_settled(self) -> Iterator[tuple[int, int]]:
        """Yield the settled rows with their stamps, the first to be evicted first."""
        rows, left = self._sorted, self._left
        while left and not self._settled.item(rows.item(left - 1)):
            left -= 1
        self._left = left
        if not left:
            return
        first = rows.item(left - 1)
        yield self.stamps.item(first), first
        for start, stop in _chunks(left - 1):
            chunk = rows[start:stop][::-1]
            chunk = chunk[self._settled[chunk]]
            yield from zip(self.stamps[chunk].tolist(), chunk.tolist(), strict=True)


def cut(stamp_ns: int) -> int:
    """Return a stamp that fits into a column."""
    return max(-FURTHEST, min(FURTHEST, stamp_ns))


def _chunks(stop: int) -> Iterator[tuple[int, int]]:
    """Yield ranges that cover [0, stop), the last first, each larger than the one before."""
    size = CHUNK
    while stop > 0:
        start = max(0, stop - size)
        yield start, stop
        stop, size = start, min(2 * size, LARGEST_CHUNK)
