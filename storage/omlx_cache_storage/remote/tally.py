"""What a remote tier counts, and what the way to the store takes."""

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping

from omlx_cache_storage.measures import Histograms

RECENT = 32
LARGE_BYTES = 256 * 1024
"""A read of less says more of the round trip than of the rate."""


class RemoteTally:
    """Counts of a remote tier, by the names that `RemoteUsage` has for them. `_lock` guards
    `_counts` and `_errors`; `timings` guards itself."""

    def __init__(self) -> None:
        self.timings = Histograms()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def add(self, **more: int) -> None:
        """Add to counts by their names."""
        with self._lock:
            self._counts.update(more)

    def note_error(self, reason: str) -> None:
        with self._lock:
            self._errors[reason] += 1

    def counts(self) -> dict[str, int]:
        """Return what was counted; what is left out is 0."""
        with self._lock:
            return dict(self._counts)

    def errors(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._errors)


class RemoteLink:
    """Remembers the latest answers. `_lock` guards all: also how many reads are in flight, since
    when some are, and the bytes that came then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trips: deque[float] = deque(maxlen=RECENT)
        self._rates: deque[float] = deque(maxlen=RECENT)
        self._reading = 0
        self._since = 0.0
        self._nbytes = 0

    def note_trip(self, seconds: float) -> None:
        """Note a question whose answer took so long, and was short."""
        with self._lock:
            self._trips.append(seconds)

    def begin_read(self) -> None:
        """Note that a read begins."""
        with self._lock:
            if not self._reading:
                self._since, self._nbytes = time.monotonic(), 0
            self._reading += 1

    def end_read(self, nbytes: int) -> None:
        """Note that a read brought so many bytes; the rate is that of all reads together."""
        with self._lock:
            self._reading -= 1
            self._nbytes += nbytes
            seconds = time.monotonic() - self._since
            if not self._reading and self._nbytes >= LARGE_BYTES and seconds > 0:
                self._rates.append(self._nbytes / seconds)

    @property
    def latency_seconds(self) -> float:
        """The shortest of the latest round trips, 0 before there was one."""
        with self._lock:
            return min(self._trips, default=0.0)

    @property
    def bytes_per_second(self) -> float:
        """The median of the latest rates, 0 before there was one."""
        with self._lock:
            rates = sorted(self._rates)
        return rates[len(rates) // 2] if rates else 0.0
