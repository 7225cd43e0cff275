"""How old pages were when they were used again, and how many wait at which age: by log-age.

NumPy is imported where it counts: a command that lists files does not wait for it.
"""

import math
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeGuard

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Ages: TypeAlias = "npt.NDArray[np.float64]"
"""A figure for each bucket."""

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


def counted(ages_seconds: Ages, weights: Ages) -> Ages:
    """Return the sum of the weights in each age's bucket."""
    import numpy as np

    octaves = np.log2(np.maximum(ages_seconds, YOUNGEST_SECONDS) / YOUNGEST_SECONDS)
    buckets = np.minimum(BUCKETS - 1, PER_OCTAVE * octaves)
    return np.bincount(buckets.astype(np.intp), weights, BUCKETS).astype(np.float64)


def end_of(bucket: int) -> float:
    """Return the age in seconds at which a bucket ends."""
    return float(YOUNGEST_SECONDS * 2 ** ((bucket + 1) / PER_OCTAVE))


_AFTER_BURST: Final = bucket_of(BURST_SECONDS)


def worth_waiting_until(uses: Ages, waiting: Ages, share: float) -> int:
    """Return the last bucket from which waiting gives as many uses a second as from the beginning,
    at most the one by whose end that `share` of the uses had come.

    `uses` has the uses by age, `waiting` the pages by age that were not used again so far.
    """
    import numpy as np

    here = uses + waiting
    beyond = np.append(np.cumsum(here[::-1])[::-1][1:], 0.0)
    used = np.append(0.0, np.cumsum(uses))
    # Page seconds: half of a bucket's by those that end in it.
    exposed = np.append(
        0.0, np.cumsum((beyond + here / 2) * np.diff([0.0, *map(end_of, range(BUCKETS))]))
    )
    gained, spent = used - used[:-1, None], exposed - exposed[:-1, None]
    # The most that waiting gives from the start of each bucket on. What is spent up to a bucket
    # before the first one is no more than nothing.
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
    sound = all(_is_figure(figure, _MOST_USES) for figure in (*uses, seen))
    if not sound or not isinstance(seen, int) or not _is_figure(patience, end_of(BUCKETS)):
        return None
    return Learned(tuple(map(float, uses)), seen, float(patience))


def _is_figure(value: object, most: float) -> TypeGuard[float]:
    # No bool; neither is a number that is not finite; and no integer is too large to be compared.
    return type(value) in (int, float) and 0 <= value <= most  # type: ignore[operator]
