"""How old pages were when they were used again, and how many wait at which age: by log-age."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

YOUNGEST_SECONDS = 0.1
PER_OCTAVE = 3
BUCKETS = 72
"""Ages up to about three weeks."""
BURST_SECONDS = 1.0
"""Uses closer than this are one burst: requests that arrive together and share a prompt's head. How
often that happens says nothing of how soon a page comes back."""


def bucket_of(age_seconds: float) -> int:
    """Return the bucket of an age; the first and the last have what lies beyond."""
    if age_seconds <= YOUNGEST_SECONDS:
        return 0
    return min(BUCKETS - 1, int(PER_OCTAVE * math.log2(age_seconds / YOUNGEST_SECONDS)))


def end_of(bucket: int) -> float:
    """Return the age in seconds at which a bucket ends."""
    return float(YOUNGEST_SECONDS * 2 ** ((bucket + 1) / PER_OCTAVE))


_ENDS = [end_of(bucket) for bucket in range(BUCKETS)]
_WIDTHS = [end - start for start, end in zip([0.0, *_ENDS[:-1]], _ENDS, strict=True)]
_AFTER_BURST = bucket_of(BURST_SECONDS)


class Hazard:
    """How likely a page of an age is used in the next second, learned from uses and from waiting.

    `uses` has the uses by age, `waiting` the pages by age that were not used again so far.
    """

    def __init__(self, uses: Sequence[float], waiting: Sequence[float]) -> None:
        self._used = [0.0, *accumulate(uses)]
        self._exposed = [0.0, *accumulate(_exposure(uses, waiting))]

    def best_rate(self, first: int) -> float:
        """Return the most uses a second that waiting gives from the start of a bucket on."""
        return max(self._rates(first), default=0.0)

    def _rates(self, first: int) -> Iterator[float]:
        for stop in range(first + 1, BUCKETS + 1):
            exposed = self._exposed[stop] - self._exposed[first]
            if exposed > 0:
                yield (self._used[stop] - self._used[first]) / exposed

    def worth_waiting_until(self) -> int:
        """Return the last bucket from which waiting gives as much as from the beginning."""
        fresh = self.best_rate(_AFTER_BURST)
        return max(
            (b for b in range(BUCKETS) if self.best_rate(b) >= fresh > 0.0), default=_AFTER_BURST
        )

    def quantile(self, share: float) -> int:
        """Return the bucket by whose end that share of the uses had come."""
        wanted = share * self._used[-1]
        return next((b for b in range(BUCKETS) if self._used[b + 1] >= wanted), 0)


def _exposure(uses: Sequence[float], waiting: Sequence[float]) -> Iterable[float]:
    """Return the page seconds that were spent in each bucket: half of one by those that end in
    it."""
    beyond = 0.0
    spent = [0.0] * BUCKETS
    for bucket in reversed(range(BUCKETS)):
        here = uses[bucket] + waiting[bucket]
        spent[bucket] = (beyond + here / 2) * _WIDTHS[bucket]
        beyond += here
    return spent
