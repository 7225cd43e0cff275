"""The eviction order: a record a page, found by its id; and the hints that move a page in it. A
hint says what a client knows of the next request for a sequence. It never changes the restored
values."""

import heapq
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Generic, Literal, Self, TypeAlias, TypeGuard, TypeVar, get_args

from omlx_cache_storage.eviction.keep import Keep, Learned, Lru
from omlx_cache_storage.format.names import PageName, StoredPage, parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo, Tail
from omlx_cache_storage.pins import Pinned

FEW = 1024
"""Entries that the heap may have beside two for each record, before it is made anew. Also the
entries that are searched in their order before all are sorted."""


Ended = Literal["tool_call", "turn", "length", "cancelled"]
"""How an answer ended. After a `tool_call` its agent is back within seconds. After a `turn` it is
unknown when the person returns, so that any new page may evict the sequence's. The others say
nothing, as no hint does."""
ENDED = ", ".join(get_args(Ended))

Priority = Literal["low", "normal", "high"]

PRIORITY_SECONDS: Final = 600
SHIFTS_NS: Final[dict[Priority, int]] = {
    "low": -PRIORITY_SECONDS * 1_000_000_000,
    "normal": 0,
    "high": PRIORITY_SECONDS * 1_000_000_000,
}


def is_ended(value: object) -> TypeGuard[Ended]:
    return isinstance(value, str) and value in get_args(Ended)


def is_priority(value: object) -> TypeGuard[Priority]:
    return isinstance(value, str) and value in SHIFTS_NS


class Record:
    """A page as its tier knows it; a record is equal to itself alone.

    `hint` is the first bytes of the parent's key, `stamp_ns` when the page was used, and
    `pinned_ns` until when a pin keeps it, 0 without one: its table alone changes these two. Besides
    its own bytes it takes `entry_bytes` of the budget.
    """

    __slots__ = (
        "held", "hint", "id", "namespace", "nbytes", "pinned_ns", "position", "stamp_ns", "tail",
    )  # fmt: skip
    entry_bytes = 0

    def __init__(self, stored: StoredPage) -> None:
        self.namespace, name, self.nbytes = stored
        self.id, self.hint, self.position, self.held, self.tail = name
        self.stamp_ns = self.pinned_ns = 0

    @property
    def cost(self) -> int:
        return self.nbytes + self.entry_bytes

    @property
    def stored(self) -> StoredPage:
        return StoredPage(
            self.namespace,
            PageName(self.id, self.hint, self.position, self.held, self.tail),
            self.nbytes,
        )

    @property
    def rank(self) -> tuple[int, int]:
        return self.stamp_ns, -self.position


R = TypeVar("R", bound=Record)
_Place: TypeAlias = tuple[int, int, PageId]


class OrderedPages(Generic[R]):
    """Records by page id, `tails` (how many end where, by their parent's hint), and the eviction
    order: by stamp, the deepest of equal ones first. Its owner's lock guards it.

    `_heap` has the rank and the id of each record, perhaps twice, and with earlier stamps. It has
    no record, as that would keep a page's memory. `nbytes` is what the records take, `pinned_bytes`
    the pinned ones of them.
    """

    def __init__(self, policy: Keep | None = None) -> None:
        self.policy = policy or Lru()
        self._records: dict[PageId, R] = {}
        self.get = self._records.get
        self._heap: list[_Place] = []
        self.tails: dict[bytes, Counter[Tail]] = {}
        self.nbytes = self.pinned_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, page: PageId) -> bool:
        return page in self._records

    def records(self) -> list[R]:
        return list(self._records.values())

    def add(self, record: R, stamp_ns: int) -> None:
        """Take a record in, as one that was used at a stamp, or later as long as it is pinned."""
        self._records[record.id] = record
        self.nbytes += record.cost
        if record.tail:
            end = Tail(record.position, record.id.group)
            self.tails.setdefault(record.hint, Counter())[end] += 1
        self._place(record, max(stamp_ns, record.pinned_ns))
        self.policy.added(record.stamp_ns)

    def pop(self, page: PageId) -> R | None:
        record = self._records.pop(page, None)
        if record is None:
            return None
        self.nbytes -= record.cost
        if record.tail:
            tails, end = self.tails[record.hint], Tail(record.position, record.id.group)
            tails[end] -= 1
            if not tails[end]:
                del tails[end]
            if not tails:
                del self.tails[record.hint]
        self.pin(record, 0, 0, 0)
        self.policy.left(page, record.stamp_ns)
        if len(self._heap) > 2 * len(self._records) + FEW:
            self._trim()
        return record

    def become(self, other: Self) -> None:
        """Have the records and the order of another table, which nobody uses from now on."""
        vars(self).update(vars(other))

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
        for page in pages:
            record = self._records.get(page)
            if record is None or (latest_ns is not None and record.stamp_ns > latest_ns):
                continue
            touched.append(page)
            if record.stamp_ns != stamp_ns:
                moves[record.stamp_ns] += 1
                self._place(record, stamp_ns)
        for before_ns, count in moves.items():
            self.policy.moved(before_ns, stamp_ns, count, used=used)
        return touched

    def pin(self, record: R, until_ns: int, now_ns: int, most_bytes: int) -> None:
        """Pin a record, here or about to be, if that lasts beyond now and all pins take
        `most_bytes` at most; else release it."""
        self.pinned_bytes -= record.cost if record.pinned_ns else 0
        fits = until_ns > now_ns and self.pinned_bytes + record.cost <= most_bytes
        record.pinned_ns = until_ns if fits else 0
        self.pinned_bytes += record.cost if fits else 0

    def repin(
        self, records: Sequence[R], until_of: Callable[[R], int], now_ns: int, most_bytes: int
    ) -> Pinned:
        """Pin those of some records that pins want, the first first, and release the others. The
        end of its pin is a pinned record's stamp: no use is as late."""
        before = {record for record in records if record.pinned_ns}
        for record in before:
            self.pin(record, 0, now_ns, 0)
        for record in records:
            self.pin(record, until_of(record), now_ns, most_bytes)
            if record.pinned_ns or record in before:
                self.touch([record.id], record.pinned_ns or now_ns)
        costs = [record.cost for record in records if record.pinned_ns]
        return Pinned(len(records), len(costs), sum(costs))

    def unpinned(self, pages: Iterable[PageId], now_ns: int) -> list[PageId]:
        return [
            record.id
            for record in filter(None, map(self._records.get, pages))
            if record.pinned_ns <= now_ns
        ]

    def _place(self, record: R, stamp_ns: int) -> None:
        record.stamp_ns = stamp_ns
        heapq.heappush(self._heap, (stamp_ns, -record.position, record.id))
        if len(self._heap) > 2 * len(self._records) + FEW:
            self._trim()

    def _trim(self) -> None:
        """Leave one place of each record in the heap."""
        self._heap = [(*record.rank, record.id) for record in self._records.values()]
        heapq.heapify(self._heap)

    def in_order(self) -> Iterator[R]:
        """Yield the records, the first to be evicted first; the table must not change meanwhile.

        Costs O(log n) a record, and for many of them, or of the places that were theirs, a sort.
        """
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        # A place comes before the two below it in the heap: the next one is always among these.
        ahead = [(place, 0) for place in self._heap[:1]]
        shown: set[PageId] = set()
        for _ in range(FEW):
            if not ahead:
                return
            place, at = heapq.heappop(ahead)
            for below in range(2 * at + 1, min(2 * at + 3, len(self._heap))):
                heapq.heappush(ahead, (self._heap[below], below))
            if self._is_current(place) and place[2] not in shown:
                shown.add(place[2])
                yield self._records[place[2]]
        if len(self._heap) > len(self._records):
            self._trim()
        # Sorted it is a heap as well, and hardly takes time to be sorted again.
        self._heap.sort()
        yield from (self._records[page] for _, _, page in self._heap if page not in shown)

    def _is_current(self, place: _Place) -> bool:
        record = self._records.get(place[2])
        return record is not None and record.rank == place[:2]

    def check_integrity(self) -> None:
        shown = list(self.in_order())
        assert len(shown) == len(self._records)
        assert all(self._records[record.id] is record for record in shown)
        ranks = [record.rank for record in shown]
        assert ranks == sorted(ranks)
        tails = [record for record in shown if record.tail]
        assert Counter((one.hint, one.position, one.id.group) for one in tails) == {
            (h, *end): n for h, ends in self.tails.items() for end, n in ends.items()
        }
        assert self.nbytes == sum(record.cost for record in shown)
        assert self.pinned_bytes == sum(record.cost for record in shown if record.pinned_ns)


class LocalTier(ABC, Generic[R]):
    """The answers that both tiers of this machine have in common. Any thread may call; nothing
    waits for a disk. `_lock` guards `_pages`."""

    _lock: threading.Lock
    _pages: OrderedPages[R]

    @abstractmethod
    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        """Return the info of each page, None for one that is not here or not usable."""

    def info(self, page: PageId) -> PageInfo | None:
        return self.find_all([page])[0]

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        """Return the tails that may follow boundaries: hints, to be checked by key."""
        with self._lock:
            tails = self._pages.tails
            hints = tails.keys() & map(parent_hint, parents) if tails else ()
            return set().union(*map(tails.__getitem__, hints))

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        """Return the keys with a child outside this chain. Looks at every record."""
        hints, chain = {parent_hint(key): key for key in keys}, set(keys)
        found = (record for record in self.records() if record.hint in hints)
        return {hints[record.hint] for record in found if record.id.key not in chain}

    def records(self) -> list[R]:
        with self._lock:
            return self._pages.records()

    @property
    def patience_ns(self) -> int:
        return self._pages.policy.patience_ns

    def note_shift(self, stamp_ns: int, used_ns: int) -> None:
        with self._lock:
            self._pages.policy.shifted(stamp_ns, used_ns)

    def learned(self) -> Learned | None:
        with self._lock:
            return self._pages.policy.learned()
