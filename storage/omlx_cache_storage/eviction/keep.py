"""`keep`: the patience is learned from the gaps between uses."""

from collections import Counter
from collections.abc import Iterable

from omlx_cache_storage.eviction.ages import BUCKETS, BURST_SECONDS, Hazard, bucket_of, end_of
from omlx_cache_storage.eviction.ghosts import Ghosts
from omlx_cache_storage.eviction.learned import Learned
from omlx_cache_storage.page import PageId
from omlx_cache_storage.recency import SUPERSEDED_NS

GHOST_SECONDS = 600.0
"""How long a page that is not here is remembered: who returns later than that is somebody new. No
patience is longer: nobody would see what it costs those that are refused."""
MOST_SHIFTS = 4096
"""Of so many uses that a hint has moved it is known when they were."""
ENOUGH_USES = 2000
"""Until so many pages were seen to be used again, the patience is none."""
LEARN_EVERY = 16
DECAY_EVERY = 50
DECAY = 0.9
"""Of uses so much counts after each `DECAY_EVERY` requests."""
MOST_USES = 0.5
"""The share of uses by whose age a page has had its chance, whatever the hazard says: with a larger
one a trace of chats loses a hundredth of its hits."""


class Keep:
    """Learns for how long a page is worth more than a new one; see `EvictionPolicy`.

    It is worth that while waiting a little longer for it gives as many uses a second as waiting for
    a fresh one would. Pages that left or were refused count as ghosts: whoever is never let in
    would never be seen to return. Costs O(1) a page; pages of one use share a counter.
    """

    def __init__(self, learned: Learned | None = None, ghosts: Ghosts | None = None) -> None:
        known = learned or Learned((0.0,) * BUCKETS, 0, 0.0)
        self.patience_ns = int(min(known.patience_seconds, GHOST_SECONDS) * 1e9)
        self._uses = list(known.uses)
        self._seen = known.seen
        self._ghosts = ghosts or Ghosts()
        self._requests = 0
        self._latest_ns = 0
        self._here: Counter[int] = Counter()
        self._gone: Counter[int] = Counter()
        self._shifted: dict[int, int] = {}

    def wanted(self, pages: Iterable[PageId], began_ns: int) -> None:
        used = self._used(began_ns)
        self._request(used)
        for page in pages:
            before = self._ghosts.take(page)
            if before is None:
                continue
            _drop(self._gone, before, 1)
            # A ghost of this very request was refused a moment ago, and is tried again.
            if 0 < used - self._used(before) < GHOST_SECONDS * 1e9:
                self._note(before, began_ns, 1)

    def added(self, stamp_ns: int, count: int = 1) -> None:
        self._here[stamp_ns] += count

    def moved(self, before_ns: int, stamp_ns: int, count: int = 1, *, used: bool) -> None:
        if used:
            self._request(self._used(stamp_ns))
            self._note(before_ns, stamp_ns, count)
        _drop(self._here, before_ns, count)
        self._here[stamp_ns] += count

    def left(self, page: PageId, stamp_ns: int) -> None:
        _drop(self._here, stamp_ns, 1)
        self._haunt(page, stamp_ns)

    def refused(self, pages: Iterable[PageId], began_ns: int) -> None:
        for page in pages:
            self._haunt(page, began_ns)

    def shifted(self, stamp_ns: int, used_ns: int) -> None:
        self._shifted[stamp_ns] = used_ns
        if len(self._shifted) > MOST_SHIFTS:
            # Uses of no page are never forgotten otherwise.
            del self._shifted[next(iter(self._shifted))]

    def learned(self) -> Learned | None:
        if not self._seen:
            return None
        return Learned(tuple(self._uses), self._seen, self.patience_ns / 1e9)

    def _haunt(self, page: PageId, stamp_ns: int) -> None:
        if stamp_ns > SUPERSEDED_NS:
            self._ghosts.add(page, stamp_ns)
            self._gone[stamp_ns] += 1

    def _note(self, before_ns: int, stamp_ns: int, count: int) -> None:
        age = self._used(stamp_ns) - self._used(before_ns)
        if before_ns > SUPERSEDED_NS and age >= 0:
            self._uses[bucket_of(age / 1e9)] += count
            self._seen += count

    def _used(self, stamp_ns: int) -> int:
        """Return when pages of a stamp were used."""
        return self._shifted.get(stamp_ns, stamp_ns)

    def _request(self, began_ns: int) -> None:
        """Count a request once: its stamp is later than those of all before."""
        if began_ns <= self._latest_ns:
            return
        self._latest_ns = began_ns
        self._requests += 1
        if self._requests % DECAY_EVERY == 0:
            self._uses = [uses * DECAY for uses in self._uses]
        if self._requests % LEARN_EVERY == 0:
            self._forget(began_ns)
            if self._seen >= ENOUGH_USES:
                self._learn(began_ns)

    def _forget(self, now_ns: int) -> None:
        oldest = now_ns - int(GHOST_SECONDS * 1e9)
        for stamp in [stamp for stamp in self._gone if stamp < oldest]:
            del self._gone[stamp]
        known = self._here.keys() | self._gone.keys()
        self._shifted = {stamp: used for stamp, used in self._shifted.items() if stamp in known}

    def _learn(self, now_ns: int) -> None:
        waiting = [0.0] * BUCKETS
        for stamps in (self._here, self._gone):
            for stamp, pages in stamps.items():
                if stamp > SUPERSEDED_NS:
                    waiting[bucket_of((now_ns - self._used(stamp)) / 1e9)] += pages
        hazard = Hazard(self._uses, waiting)
        bucket = min(hazard.quantile(MOST_USES), hazard.worth_waiting_until())
        learned = min(end_of(bucket), GHOST_SECONDS)
        self.patience_ns = int(learned * 1e9) if learned > BURST_SECONDS else 0


def _drop(stamps: Counter[int], stamp_ns: int, count: int) -> None:
    left = stamps[stamp_ns] - count
    if left > 0:
        stamps[stamp_ns] = left
    else:
        del stamps[stamp_ns]
