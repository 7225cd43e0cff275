"""How often something took how long: counts in fixed buckets, as Prometheus has them."""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from omlx_cache_storage.interrupts import uninterrupted

Measure = Literal[
    "restore_seconds",
    "commit_seconds",
    "held_seconds",
    "prefill_seconds",
    "page_write_seconds",
    "page_read_seconds",
    "remote_lookup_seconds",
    "remote_page_read_seconds",
    "asked_tokens",
    "restored_tokens",
]
"""Of each request: its restore, its commit, what it waited for another one, what it computed of its
prompt, the tokens that it asked for and got. Of each page: its write and its read. Of a store
on other machines: each look-up that was answered, and each page that came, from when it was wanted
until it was in its place."""
MEASURES: tuple[Measure, ...] = get_args(Measure)

_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
_TOKENS = tuple(float(4**power) for power in range(3, 11))
BOUNDS: Mapping[Measure, Sequence[float]] = {
    name: _TOKENS if name.endswith("_tokens") else _SECONDS for name in MEASURES
}


@dataclass(frozen=True, slots=True)
class Histogram:
    """One measure at one moment: `buckets` are (bound, how many were no larger); `count` has those
    beyond the last bound too."""

    buckets: tuple[tuple[float, int], ...]
    sum: float
    count: int

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON and the control socket."""
        return {
            "buckets": [list(bucket) for bucket in self.buckets],
            "sum": self.sum,
            "count": self.count,
        }


class Histograms:
    """Counts what is observed. Any thread may call; `_lock` guards `_counts` and `_sums`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in BOUNDS.items()}
        self._sums = dict.fromkeys(MEASURES, 0.0)

    @uninterrupted
    def observe(self, measure: Measure, value: float) -> None:
        """Count a value, in the unit of the measure's name."""
        at = bisect_left(BOUNDS[measure], value)
        with self._lock:
            self._counts[measure][at] += 1
            self._sums[measure] += value

    @uninterrupted
    def total(self, measure: Measure) -> float:
        """Return the sum of all values of a measure."""
        with self._lock:
            return self._sums[measure]

    @uninterrupted
    def observed(self) -> dict[str, Histogram]:
        """Return every measure that was observed once at least, by name."""
        with self._lock:
            counts = {name: list(row) for name, row in self._counts.items() if any(row)}
            sums = dict(self._sums)
        return {name: _histogram(name, row, sums[name]) for name, row in counts.items()}


def together(*sources: Mapping[str, Histogram]) -> dict[str, Histogram]:
    """Return every measure, of which no two sources count the same; those that nobody observed are
    empty."""
    found: dict[str, Histogram] = {
        name: _histogram(name, [0] * (len(BOUNDS[name]) + 1), 0.0) for name in MEASURES
    }
    for source in sources:
        found |= source
    return found


def _histogram(measure: Measure, counts: Sequence[int], total: float) -> Histogram:
    running, buckets = 0, []
    for bound, count in zip(BOUNDS[measure], counts, strict=False):
        running += count
        buckets.append((bound, running))
    return Histogram(tuple(buckets), total, running + counts[-1])
