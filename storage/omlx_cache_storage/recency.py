"""The eviction order: least recently used, a chain's deep end before its root.

A page is useless without the pages before it, so the pages of one touch share one stamp, and of
equal stamps the deepest leaves first. The same two numbers are in a page file's modification time
and name: a restart finds the same order. Measured on coding-agent traces this lifts the hit rate
from 0.514 to 0.683 at equal capacity (docs/design.md).
"""

import itertools
import threading
import time

SUPERSEDED_NS = 1_000_000_000
"""Stamps up to this one, a second after the epoch, mark superseded pages: the first to leave."""


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

    def elapsed_ns(self) -> int:
        """Return a time by which to measure how long something takes: nobody sets it."""
        return time.monotonic_ns()

    def superseded(self) -> int:
        """Return a stamp before every other, for pages that shall leave first."""
        return SUPERSEDED_NS - next(self._demotions)


def age_seconds(stamp_ns: int, now_ns: int | None = None) -> float | None:
    """Return how long ago a page was used; None for a superseded one."""
    if stamp_ns <= SUPERSEDED_NS:
        return None
    return max(0.0, ((time.time_ns() if now_ns is None else now_ns) - stamp_ns) / 1e9)
