"""How old pages were when they were used again, and how many wait at which age: by log-age."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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


def buckets_of(ages_seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """`bucket_of` for many ages."""
    octaves = np.log2(np.maximum(ages_seconds, YOUNGEST_SECONDS) / YOUNGEST_SECONDS)
    buckets: npt.NDArray[np.intp] = np.minimum(BUCKETS - 1, PER_OCTAVE * octaves).astype(np.intp)
    return buckets


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

    def best_rates(self) -> npt.NDArray[np.float64]:
        """Return the most uses a second that waiting gives from the start of each bucket on."""
        used, exposed = np.array(self._used), np.array(self._exposed)
        gained, spent = used - used[:-1, None], exposed - exposed[:-1, None]
        rates = np.zeros_like(spent)
        # What is spent up to a bucket before the first one is no more than nothing.
        np.divide(gained, spent, out=rates, where=spent > 0)
        best: npt.NDArray[np.float64] = rates.max(axis=1)
        return best

    def worth_waiting_until(self) -> int:
        """Return the last bucket from which waiting gives as much as from the beginning."""
        rates = self.best_rates()
        fresh = rates[_AFTER_BURST]
        return int(np.flatnonzero(rates >= fresh)[-1]) if fresh > 0 else _AFTER_BURST

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


VERSION = 1
_MOST_USES = 1e12


class Learned(NamedTuple):
    """Uses by log-age, how many there were in all, and the patience in seconds."""

    uses: tuple[float, ...]
    seen: int
    patience_seconds: float

    def document(self) -> dict[str, object]:
        """Return plain values, for a file."""
        return {
            "version": VERSION,
            "uses": [round(uses, 3) for uses in self.uses],
            "seen": self.seen,
            "patience_seconds": self.patience_seconds,
        }


def parse_learned(document: dict[str, object]) -> Learned | None:
    """Return what a file says, None for what no policy of this version has written."""
    uses, seen = document.get("uses"), document.get("seen")
    patience = document.get("patience_seconds")
    if document.get("version") != VERSION or not isinstance(uses, list) or len(uses) != BUCKETS:
        return None
    if not all(_is_figure(figure, _MOST_USES) for figure in uses):
        return None
    if isinstance(seen, bool) or not isinstance(seen, int) or not _is_figure(seen, _MOST_USES):
        return None
    if not isinstance(patience, int | float) or not _is_figure(patience, end_of(BUCKETS)):
        return None
    return Learned(tuple(map(float, uses)), seen, float(patience))


def _is_figure(value: object, most: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # Neither is a number that is not finite; and no integer is too large to be compared.
    return 0 <= value <= most
