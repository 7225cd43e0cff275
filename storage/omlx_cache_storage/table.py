"""What a tier knows of its pages: a record a page, found by its id and ordered for eviction."""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.eviction.keep import Keep, Lru
from omlx_cache_storage.format.names import parent_hint
from omlx_cache_storage.keys import PARENT_HINT_BYTES, BlockKey
from omlx_cache_storage.page import PageId, Tail

Numbers = npt.NDArray[np.int64]


class PageColumns(NamedTuple):
    """A copy, which belongs to who asked for it. `keys` has the pages' keys as objects,
    `hints` what a name knows of the parent's, as a number; `namespace` counts in `namespaces`.
    `pinned` are those that a pin of the directory keeps, None for no page."""

    keys: npt.NDArray[Any]
    hints: npt.NDArray[np.uint64]
    positions: Numbers
    held: Numbers
    nbytes: Numbers
    stamps: Numbers
    namespaces: Sequence[BlockKey]
    namespace: npt.NDArray[np.uint32]
    pinned: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.keys)


def hint_numbers(keys: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """Return by which number the name of a page after each key tells of it."""
    raw = b"".join([key[:PARENT_HINT_BYTES] for key in keys])
    return np.frombuffer(raw, ">u8").astype(np.uint64)


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


class PageTable(Generic[R]):
    """Records by page id, tails by their parent, and the eviction order. Its owner's lock guards
    it."""

    def __init__(self, policy: Keep | None = None) -> None:
        self._policy = policy or Lru()
        self._records: dict[PageId, R] = {}
        self._order: EvictionOrder[R] = EvictionOrder()
        self._tails: dict[bytes, set[R]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, page: PageId) -> bool:
        return page in self._records

    def __iter__(self) -> Iterator[PageId]:
        """Yield all pages, in no order, as they are now."""
        return iter(list(self._records))

    # Finding.

    def get(self, page: PageId) -> R | None:
        return self._records.get(page)

    def get_all(self, pages: Iterable[PageId]) -> list[R | None]:
        return list(map(self._records.get, pages))

    def records(self) -> list[R]:
        """Return all records, in no order: cheap, and to be worked on outside of the lock."""
        return list(self._records.values())

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        """Return the tails that may follow boundaries: hints, to be checked by key."""
        hints = self._tails.keys() & map(parent_hint, parents) if self._tails else ()
        return {Tail(r.position, r.id.group) for hint in hints for r in self._tails[hint]}

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        """Return the keys with a child outside this chain. Looks at every record."""
        hints, chain = {parent_hint(key): key for key in keys}, set(keys)
        found = (r for r in self._records.values() if r.hint in hints)
        return {hints[record.hint] for record in found if record.id.key not in chain}

    # Changing.

    def add(self, record: R, stamp_ns: int) -> None:
        """Take a record of a page that is not here."""
        self._records[record.id] = record
        if record.tail:
            self._tails.setdefault(record.hint, set()).add(record)
        self._order.add(record, stamp_ns)
        self._policy.added(stamp_ns)

    def pop(self, page: PageId) -> R | None:
        """Remove a page and return its record, None for one that is not here."""
        record = self._records.pop(page, None)
        if record is None:
            return None
        if record.tail:
            siblings = self._tails[record.hint]
            siblings.discard(record)
            if not siblings:
                del self._tails[record.hint]
        self._policy.left(page, record.stamp_ns)
        self._order.remove(record)
        return record

    def touch(
        self,
        pages: Iterable[PageId],
        stamp_ns: int,
        latest_ns: int | None = None,
        *,
        used: bool = False,
    ) -> list[PageId]:
        """Give the pages that are here a stamp; with `latest_ns`, those whose stamp is no later.
        Return them. `used`: True for an access, False for a reorder."""
        touched: list[PageId] = []
        moves: Counter[int] = Counter()
        order = self._order
        for page in pages:
            record = self._records.get(page)
            if record is None or (latest_ns is not None and record.stamp_ns > latest_ns):
                continue
            touched.append(page)
            before_ns = record.stamp_ns
            if before_ns != stamp_ns:
                order.remove(record)
                order.add(record, stamp_ns)
                moves[before_ns] += 1
        for before_ns, count in moves.items():
            self._policy.moved(before_ns, stamp_ns, count, used=used)
        return touched

    # The order.

    def stamp(self, page: PageId) -> int:
        """Return when a page was used; raises KeyError."""
        return self._records[page].stamp_ns

    def visit(self, visitor: Callable[[R], bool]) -> None:
        """Show records, the first to be evicted first, until `visitor` returns False.

        `visitor` must not change the table. Costs O(log n) a page shown.
        """
        walk = self._order.walk()
        try:
            for record in walk:
                if not visitor(record):
                    return
        finally:
            walk.close()

    def ordered(self) -> list[R]:
        """Return all records, the first to be evicted first."""
        return sorted(self._records.values(), key=lambda record: record.rank)

    def check_integrity(self) -> None:
        """Assert that the records, the tails and the order agree."""
        walk = self._order.walk()
        shown = list(walk)
        assert len(shown) == len(self._records)
        assert all(self._records[record.id] is record for record in shown)
        ranks = [record.rank for record in shown]
        assert ranks == sorted(ranks)
        tails = {record for record in shown if record.tail}
        assert tails == set().union(*self._tails.values())
