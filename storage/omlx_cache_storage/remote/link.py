"""What the way to a remote store takes: learned from what was asked and read."""

import threading
from collections import deque

RECENT = 32
LARGE_BYTES = 256 * 1024
"""A read of less says more of the round trip than of the rate."""


class Link:
    """Remembers the latest answers. `_lock` guards both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trips: deque[float] = deque(maxlen=RECENT)
        self._rates: deque[float] = deque(maxlen=RECENT)

    def note_trip(self, seconds: float) -> None:
        """Note a question whose answer took so long, and was short."""
        with self._lock:
            self._trips.append(seconds)

    def note_read(self, nbytes: int, seconds: float) -> None:
        """Note that all connections together brought so many bytes in so long."""
        if nbytes >= LARGE_BYTES and seconds > 0:
            with self._lock:
                self._rates.append(nbytes / seconds)

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
