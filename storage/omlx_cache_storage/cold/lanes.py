"""Eviction among the pages of some namespaces, without a look at all the others each time.

A lane has the rows of its namespaces in eviction order, copied in one pass over the table, and is
used up from its front. What changes later is not looked for in it: an entry counts while its page
is there with the stamp that it had. Pages that get a place before the lane's end wait in a heap
beside it, and what comes behind its end is found when it is copied anew.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import FEW, FREE, Rows

MOST_COPIES = 4
"""All lanes together have no more entries than this for each page of the table: a page is in one
namespace, of one salt, of one model, and lanes that nobody wants any more go first."""


class Ordered(Protocol):
    """What a table says of its rows."""

    def __len__(self) -> int: ...
    def in_order(self) -> Rows: ...
    def stamp_at(self, row: int) -> int: ...
    def stamps_at(self, rows: Rows) -> npt.NDArray[np.int64]: ...
    def position(self, row: int) -> int: ...


class Lane:
    """The rows of some namespaces: a queue, the first to be evicted last, and a heap of late ones.

    The first `left` of `rows` are still of interest. `end_ns` is the last stamp of which every page
    is here; None: nothing was copied. `has_more`: there may be pages behind that. `serials`: a row
    with a later number was given to another page since.
    """

    def __init__(self, numbers: npt.NDArray[np.intp]) -> None:
        self.numbers = numbers
        self.forget()

    def forget(self) -> None:
        """Have nothing, until it is copied anew."""
        self.rows: Rows = np.empty(0, np.int32)
        self.stamps = np.empty(0, np.int64)
        self.left = 0
        self.late: list[tuple[int, int, int, int]] = []
        self.serials = 0
        self.end_ns: int | None = None
        self.has_more = True

    def __len__(self) -> int:
        return len(self.rows) + len(self.late) + len(self.numbers)


class Lanes:
    """Lanes over one table, by their namespaces. Its owner's lock guards it.

    `namespace` and `serial` are columns of the table: the number of a page's namespace, and one
    that rises with each page that comes. Costs O(1) for a row that is shown, O(log n) for a late
    one, and one pass over the table when a lane is used up.
    """

    def __init__(
        self,
        table: Ordered,
        namespace: npt.NDArray[np.uint32],
        serial: npt.NDArray[np.int64],
    ) -> None:
        self._table = table
        self._namespace = namespace
        self._serial = serial
        self._lanes: OrderedDict[frozenset[BlockKey], Lane] = OrderedDict()
        self._of: dict[int, list[Lane]] = {}

    def __bool__(self) -> bool:
        """True when `placed` is of interest."""
        return bool(self._lanes)

    def clear(self) -> None:
        """Forget all lanes: the table was filled."""
        self._lanes.clear()
        self._of.clear()

    def placed(self, rows: Sequence[int], stamp_ns: int) -> None:
        """Note that rows have got a stamp: pages that came, or were moved."""
        if not rows:
            return
        at = np.array(rows, np.intp)
        namespaces = self._namespace[at]
        for number in np.unique(namespaces).tolist():
            for lane in self._of.get(number, ()):
                if lane.end_ns is not None and stamp_ns <= lane.end_ns:
                    self._add_late(lane, at[namespaces == number].tolist(), stamp_ns)
                else:
                    lane.has_more = True

    def visit(
        self,
        namespaces: frozenset[BlockKey],
        number_of: Callable[[BlockKey], int],
        visitor: Callable[[int], bool],
    ) -> None:
        """Show the rows of namespaces, the first to be evicted first, until `visitor` returns
        False; it must not change the table."""
        lane = self._lane(namespaces, number_of)
        if lane.end_ns is None:
            self._copy(lane)
        seen: set[int] = set()
        while self._show(lane, seen, visitor) and lane.has_more:
            self._copy(lane)

    def check_integrity(self) -> None:
        """Assert that each lane shows every page of its namespaces up to its end, in order."""
        rows = self._table.in_order()[::-1]
        for lane in self._lanes.values():
            if lane.end_ns is None:
                continue
            shown: list[int] = []
            self._show(lane, set(), lambda row, shown=shown: shown.append(row) is None)  # type: ignore[misc]
            mine = rows[np.isin(self._namespace[rows], lane.numbers)]
            stamps = self._table.stamps_at(mine)
            assert sorted(shown) == sorted(mine[stamps <= lane.end_ns].tolist())
            assert lane.has_more or len(shown) == len(mine)
            ranks = [self._rank(row) for row in shown]
            assert ranks == sorted(ranks)

    def _lane(self, namespaces: frozenset[BlockKey], number_of: Callable[[BlockKey], int]) -> Lane:
        lane = self._lanes.get(namespaces)
        if lane is None:
            numbers = list(map(number_of, namespaces))
            lane = self._lanes[namespaces] = Lane(np.array(numbers, np.intp))
            for number in numbers:
                self._of.setdefault(number, []).append(lane)
        self._lanes.move_to_end(namespaces)
        return lane

    def _copy(self, lane: Lane) -> None:
        """Give a lane all rows of its namespaces, in one pass."""
        rows = self._table.in_order()
        namespaces = self._namespace[rows]
        size = int(max(namespaces.max(initial=0), lane.numbers.max(initial=0))) + 1
        wanted = np.zeros(size, np.bool_)
        wanted[lane.numbers] = True
        lane.rows = rows[wanted[namespaces]]
        lane.stamps = self._table.stamps_at(lane.rows)
        lane.left = len(lane.rows)
        lane.late = []
        lane.serials = int(self._serial[lane.rows].max(initial=0))
        lane.end_ns = int(lane.stamps[0]) if lane.left else FREE
        lane.has_more = False
        self._make_room()

    def _make_room(self) -> None:
        """Forget the lanes that were used longest ago, when all have too many entries."""
        most = MOST_COPIES * len(self._table) + FEW
        total = sum(map(len, self._lanes.values()))
        while total > most and len(self._lanes) > 1:
            _, lane = self._lanes.popitem(last=False)
            total -= len(lane)
            for number in lane.numbers.tolist():
                self._of[number].remove(lane)

    def _add_late(self, lane: Lane, rows: list[int], stamp_ns: int) -> None:
        if len(lane.late) + len(rows) > lane.left + FEW:
            # To copy what is there takes less.
            lane.forget()
            return
        for row in rows:
            depth = -self._table.position(row)
            heapq.heappush(lane.late, (stamp_ns, depth, self._serial.item(row), row))

    def _show(self, lane: Lane, seen: set[int], visitor: Callable[[int], bool]) -> bool:
        """Show a lane's rows but those in `seen`; return whether the visitor wants more."""
        shown: list[tuple[int, int, int, int]] = []
        try:
            for row in self._walk(lane, shown):
                if row not in seen:
                    seen.add(row)
                    if not visitor(row):
                        return False
            return True
        finally:
            for entry in shown:
                heapq.heappush(lane.late, entry)

    def _walk(self, lane: Lane, shown: list[tuple[int, int, int, int]]) -> Iterator[int]:
        """Yield a lane's rows, the first to be evicted first, one perhaps twice; `shown` gets what
        is taken from its heap."""
        left = lane.left
        while True:
            while left and not self._is_queued(lane, left - 1):
                lane.left -= left == lane.left
                left -= 1
            while lane.late and not self._is_late(lane.late[0]):
                heapq.heappop(lane.late)
            row = lane.rows.item(left - 1) if left else -1
            if lane.late and (not left or lane.late[0][:2] < self._rank(row)):
                shown.append(heapq.heappop(lane.late))
                yield shown[-1][-1]
            elif left:
                left -= 1
                yield row
            else:
                return

    def _is_queued(self, lane: Lane, place: int) -> bool:
        """True when a place in a queue is that of its page."""
        row = lane.rows.item(place)
        is_same = self._table.stamp_at(row) == lane.stamps.item(place)
        return is_same and self._serial.item(row) <= lane.serials

    def _is_late(self, entry: tuple[int, int, int, int]) -> bool:
        stamp_ns, _depth, serial, row = entry
        return self._table.stamp_at(row) == stamp_ns and self._serial.item(row) == serial

    def _rank(self, row: int) -> tuple[int, int]:
        return self._table.stamp_at(row), -self._table.position(row)
