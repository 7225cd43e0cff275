"""The eviction policy: for how long a page that was used is not evicted for a new one.

Agents come back after some seconds: when more of them are active than there is room for, evicting
the next to return helps none (docs/reuse.md). So the policy rejects a new page when the first in
the order of eviction was used a short while ago. It counts, by log-age, how old pages were when
they were used again, and how many wait at each age. NumPy is imported where it is used: a command
that lists files does not wait for it.
"""

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeGuard

from omlx_cache_storage.page import PageId

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Ages: TypeAlias = "npt.NDArray[np.float64]"

YOUNGEST_SECONDS = 0.1
PER_OCTAVE = 3
BUCKETS = 72
"""Ages up to about three weeks."""
BURST_SECONDS = 1.0
"""Uses closer than this are one burst of requests that share a prompt's head, which says nothing of
how soon a page comes back."""


def bucket_of(age_seconds: float) -> int:
    if age_seconds <= YOUNGEST_SECONDS:
        return 0
    return min(BUCKETS - 1, int(PER_OCTAVE * math.log2(age_seconds / YOUNGEST_SECONDS)))


def counted(ages_seconds: Ages, weights: Ages) -> Ages:
    import numpy as np

    octaves = np.log2(np.maximum(ages_seconds, YOUNGEST_SECONDS) / YOUNGEST_SECONDS)
    buckets = np.minimum(BUCKETS - 1, PER_OCTAVE * octaves)
    return np.bincount(buckets.astype(np.intp), weights, BUCKETS).astype(np.float64)


def end_of(bucket: int) -> float:
    return float(YOUNGEST_SECONDS * 2 ** ((bucket + 1) / PER_OCTAVE))


_AFTER_BURST: Final = bucket_of(BURST_SECONDS)


def worth_waiting_until(uses: Ages, waiting: Ages, share: float) -> int:
    """Return the last bucket from which waiting gives as many uses a second as from the beginning.
    It is at most the bucket by whose end that `share` of the uses had come.

    `uses` has the uses by age, `waiting` the pages by age that were not used again so far.
    """
    import numpy as np

    here = uses + waiting
    beyond = np.append(np.cumsum(here[::-1])[::-1][1:], 0.0)
    used = np.append(0.0, np.cumsum(uses))
    # Page seconds: half of a bucket's by the pages that end in it.
    exposed = np.append(
        0.0, np.cumsum((beyond + here / 2) * np.diff([0.0, *map(end_of, range(BUCKETS))]))
    )
    gained, spent = used - used[:-1, None], exposed - exposed[:-1, None]
    # The best rate of waiting from the start of each bucket on. Up to a bucket before the start the
    # spent time is zero or less.
    rates = np.divide(gained, spent, out=np.zeros_like(spent), where=spent > 0).max(axis=1)
    fresh = rates[_AFTER_BURST]
    last = np.flatnonzero(rates >= fresh)[-1] if fresh > 0 else _AFTER_BURST
    return int(min(last, np.searchsorted(used[1:], share * used[-1])))


VERSION = 1
_MOST_USES = 1e12


class Learned(NamedTuple):
    """Uses by log-age, how many there were in all, and the patience in seconds."""

    uses: tuple[float, ...]
    seen: int
    patience_seconds: float

    def document(self) -> dict[str, object]:
        return {
            "version": VERSION,
            "uses": [round(uses, 3) for uses in self.uses],
            "seen": self.seen,
            "patience_seconds": self.patience_seconds,
        }


def parse_learned(document: dict[str, object]) -> Learned | None:
    uses, seen = document.get("uses"), document.get("seen")
    patience = document.get("patience_seconds")
    if document.get("version") != VERSION or not isinstance(uses, list) or len(uses) != BUCKETS:
        return None
    sound = all(_is_figure(figure, _MOST_USES) for figure in (*uses, seen))
    if not sound or not isinstance(seen, int) or not _is_figure(patience, end_of(BUCKETS)):
        return None
    return Learned(tuple(map(float, uses)), seen, float(patience))


def _is_figure(value: object, most: float) -> TypeGuard[float]:
    # No bool; neither is a number that is not finite; and no integer is too large to be compared.
    return type(value) in (int, float) and 0 <= value <= most  # type: ignore[operator]


SLOTS = 1 << 16


class Ghosts:
    """Remembers stamps of pages that left: `SLOTS` at most, 16 bytes each, in one table.

    A page takes the slot that its key says, from the page that has it: no search, no growth. Its
    mark is Python's own hash; the stamp is 0 where there is no page. Its owner's lock guards it.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        # Only here, and below: commands import this module for its names.
        import numpy as np

        self._slots = slots
        # Views, since they give and take Python's own integers, of memory that is not there before
        # it is used.
        self._marks = np.zeros(slots, np.int64).data
        self._stamps = np.zeros(slots, np.int64).data

    def add(self, page: PageId, stamp_ns: int) -> None:
        mark = hash(page)
        self._marks[mark % self._slots], self._stamps[mark % self._slots] = mark, stamp_ns

    def take(self, pages: Iterable[PageId]) -> Counter[int]:
        """Return how many of the known pages were used last at each stamp, and forget them."""
        marks, stamps, slots = self._marks, self._stamps, self._slots
        found: Counter[int] = Counter()
        for mark in map(hash, pages):
            slot = mark % slots
            if marks[slot] == mark and stamps[slot]:
                found[stamps[slot]] += 1
                stamps[slot] = 0
        return found

    def since(self, oldest_ns: int) -> Counter[int]:
        import numpy as np

        stamps = np.asarray(self._stamps)
        return Counter(stamps[stamps >= oldest_ns].tolist())


GHOST_SECONDS = 600.0
"""How long an absent page is remembered: a page that returns later counts as new."""
MOST_SHIFTS = 4096
"""Of so many uses that a hint has moved it is known when they were."""
ENOUGH_USES = 2000
"""Until so many pages were seen to be used again, the patience is none."""
OWN_USE_NS = 1_000_000
"""A sooner use is the request itself, which stores a page and then marks its whole chain; the
writer may have written that page in between."""
LEARN_EVERY = 16
STAMPS_A_REQUEST = 1024
"""Learning goes through the stamps that pages here have: at most so many for each request in
between."""
DECAY_EVERY = 50
DECAY = 0.9
"""Uses are multiplied by this after each `DECAY_EVERY` requests."""
MOST_USES = 0.5
"""The share of uses by whose age a page has had its chance, for any hazard. With a larger share a
trace of chats loses a hundredth of its hits."""

MOST_PATIENCE_SECONDS = GHOST_SECONDS
"""Rejected pages are remembered no longer, so nothing shows that pages which wait longer are worth
more. Clients of another habit are admitted after that, regardless of earlier learning."""


class Keep:
    """Learns from the gaps between uses for how long a page is worth more than a new one:
    `patience_ns`. A tier tells it of its pages; the tier's lock guards it.

    Stamps are those of the tier's clock. A request has one for all its pages. Pages that it stores
    later may have a newer one, which is no use of its earlier pages.

    A page is worth that while waiting a little longer for it gives as many uses a second as waiting
    for a fresh one would. Pages that left or were refused count as ghosts: else one that is never
    admitted would never return. Costs O(1) a page; pages of one use share a counter.
    """

    def __init__(self, learned: Learned | None = None) -> None:
        import numpy as np

        known = learned or Learned((0.0,) * BUCKETS, 0, 0.0)
        # Fewer uses than that teach nothing, so the file's patience would stay for ever.
        self.patience_ns = _patience_ns(
            known.patience_seconds if known.seen >= ENOUGH_USES else 0.0
        )
        self._uses = np.array(known.uses)
        self._seen = known.seen
        self._ghosts = Ghosts()
        self._requests = 0
        self._learned_at = 0
        self._latest_ns = 0
        self._here: Counter[int] = Counter()
        self._shifted: dict[int, int] = {}

    def wanted(self, pages: Iterable[PageId], began_ns: int) -> None:
        """Note pages that are not here and that a request wants which began at a stamp."""
        self._request(began_ns)
        # A ghost of this very request was refused a moment ago, and is tried again.
        for before_ns, count in self._ghosts.take(pages).items():
            self._note(before_ns, began_ns, count, GHOST_SECONDS * 1e9)

    def added(self, stamp_ns: int, count: int = 1) -> None:
        self._here[stamp_ns] += count

    def moved(self, before_ns: int, stamp_ns: int, count: int = 1, *, used: bool) -> None:
        if used:
            self._request(stamp_ns)
            self._note(before_ns, stamp_ns, count)
        self._drop(before_ns, count)
        self._here[stamp_ns] += count

    def left(self, page: PageId, stamp_ns: int) -> None:
        self._drop(stamp_ns, 1)
        self.refused([page], stamp_ns)

    def refused(self, pages: Iterable[PageId], began_ns: int) -> None:
        """Note pages that a request wanted which began at a stamp, and that were not taken."""
        for page in pages if began_ns > SUPERSEDED_NS else ():
            self._ghosts.add(page, began_ns)

    def shifted(self, stamp_ns: int, used_ns: int) -> None:
        """Note that pages at a stamp were used at another time than that: a hint moved it."""
        self._shifted[stamp_ns] = used_ns
        if len(self._shifted) > MOST_SHIFTS:
            # Uses of no page are never forgotten otherwise.
            del self._shifted[next(iter(self._shifted))]

    def learned(self) -> Learned | None:
        if not self._seen:
            return None
        return Learned(tuple(self._uses.tolist()), self._seen, self.patience_ns / 1e9)

    def _drop(self, stamp_ns: int, count: int) -> None:
        self._here[stamp_ns] -= count
        if self._here[stamp_ns] <= 0:
            del self._here[stamp_ns]

    def _note(self, before_ns: int, stamp_ns: int, count: int, most_ns: float = math.inf) -> None:
        """Count how old pages were at a use, if they were younger than `most_ns`."""
        used_ns = self._shifted.get(before_ns, before_ns)
        age = self._shifted.get(stamp_ns, stamp_ns) - used_ns
        if before_ns > SUPERSEDED_NS and OWN_USE_NS <= age < most_ns:
            self._uses[bucket_of(age / 1e9)] += count
            self._seen += count

    def _request(self, stamp_ns: int) -> None:
        began_ns = self._shifted.get(stamp_ns, stamp_ns)
        if began_ns <= self._latest_ns:
            return
        self._latest_ns = began_ns
        self._requests += 1
        if self._requests % DECAY_EVERY == 0:
            self._uses *= DECAY
        every = max(LEARN_EVERY, len(self._here) // STAMPS_A_REQUEST)
        if self._requests - self._learned_at >= every:
            self._learned_at = self._requests
            self._learn(began_ns)

    def _learn(self, now_ns: int) -> None:
        import numpy as np

        oldest = now_ns - int(GHOST_SECONDS * 1e9)
        # One of a request in flight may have no page yet.
        self._shifted = {
            stamp: used
            for stamp, used in self._shifted.items()
            if stamp in self._here or max(stamp, used) >= oldest
        }
        if self._seen < ENOUGH_USES:
            return
        waiting = self._ghosts.since(oldest)
        waiting.update(self._here)
        stamps = [stamp for stamp in waiting if stamp > SUPERSEDED_NS]
        used = np.fromiter(map(self._shifted.get, stamps, stamps), np.int64, len(stamps))
        pages = np.fromiter(map(waiting.__getitem__, stamps), np.float64, len(stamps))
        bucket = worth_waiting_until(self._uses, counted((now_ns - used) / 1e9, pages), MOST_USES)
        self.patience_ns = _patience_ns(end_of(bucket))


class Lru(Keep):
    """Learns nothing and has no patience: for tiers that admit no new pages of requests, memory
    that pages only pass through, and simulations to compare with."""

    def _note(
        self, before_ns: int, stamp_ns: int, count: int, most_ns: float = math.inf
    ) -> None: ...


def _patience_ns(seconds: float) -> int:
    return int(min(seconds, MOST_PATIENCE_SECONDS) * 1e9) if seconds >= BURST_SECONDS else 0


SUPERSEDED_NS = 1_000_000_000
"""Stamps up to this one, a second after the epoch, mark superseded pages: the first to leave."""
NEVER_NS = -1
"""The stamp on the disk of a page that was damaged or deleted there: any use is later."""


class Clock:
    """Stamps in nanoseconds of the wall clock, each later than all before; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._measured = time.monotonic_ns()
        self._demotions = itertools.count()

    def now(self) -> int:
        """Return a stamp for pages used now. A wall clock that is set back does not disturb: time
        goes on, or nothing would grow old until the wall clock is where it was."""
        with self._lock:
            # First the wall clock: a pause between the two must not leave these stamps ahead of it.
            wall, measured = time.time_ns(), time.monotonic_ns()
            passed = max(1, measured - self._measured) if self._last else 0
            self._measured = measured
            self._last = max(self._last + passed, wall)
            return self._last

    def superseded(self) -> int:
        return SUPERSEDED_NS - next(self._demotions)


def age_seconds(stamp_ns: int, now_ns: int | None = None) -> float | None:
    if stamp_ns <= SUPERSEDED_NS:
        return None
    return max(0.0, ((time.time_ns() if now_ns is None else now_ns) - stamp_ns) / 1e9)
