"""How many connections bring pages at once: as few as bring them as fast as more would.

On a quick network one or two are as fast as any number, and threads that fight for one interpreter
are slower than few, the model's own among them; on a far one, or one that gives each connection a
share, more of them bring more.
"""

from collections.abc import Sequence

SLICE_BYTES = 16 << 20
"""What is brought at one width before it is judged."""
WORTH_IT = 1.08
"""More connections are to bring so much more."""
AGAIN = 24
"""So many slices after it was tried, another width is tried again: networks change."""


class Lanes:
    """Tries widths, doubled up to `most`, and keeps to the best. Not thread-safe: its owner's lock
    guards it."""

    def __init__(self, most: int, first: int) -> None:
        self._widths: Sequence[int] = [*(1 << n for n in range(most.bit_length() - 1)), most]
        if len(self._widths) > 1 and self._widths[-2] >= most:
            self._widths = self._widths[:-1]
        self._at = min(range(len(self._widths)), key=lambda at: abs(self._widths[at] - first))
        self._rates: dict[int, float] = {}
        self._tried: dict[int, int] = {}
        self._slices = 0

    @property
    def width(self) -> int:
        return self._widths[self._at]

    def note(self, nbytes: int, seconds: float) -> None:
        """Note what a slice at this width took, and go to the next one."""
        if seconds <= 0:
            return
        self._slices += 1
        before = self._rates.get(self._at)
        rate = nbytes / seconds
        self._rates[self._at] = rate if before is None else (before + rate) / 2
        self._tried[self._at] = self._slices
        self._at = self._next()

    def _next(self) -> int:
        best = min(self._rates)
        for at in sorted(self._rates):
            if self._rates[at] > WORTH_IT * self._rates[best]:
                best = at
        for at in (best + 1, best - 1):
            last = self._tried.get(at)
            due = last is None or self._slices - last >= AGAIN
            if 0 <= at < len(self._widths) and due:
                return at
        return best


class Pace:
    """How fast values come and are taken. Not thread-safe: its owner's lock guards it.

    While there are workers it is busy; a slice lasts until `SLICE_BYTES` were taken meanwhile.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._since, self._nbytes = 0.0, 0
        self._slice_since, self._slice_bytes = 0.0, 0

    @property
    def width(self) -> int:
        return self._lanes.width

    def begin(self, now: float) -> None:
        """Be busy from now on."""
        self._since, self._nbytes = now, 0

    def brought(self, nbytes: int) -> None:
        self._nbytes += nbytes

    def end(self, now: float) -> tuple[int, float]:
        """Be busy no longer; return how many bytes came in how many seconds."""
        nbytes, self._nbytes = self._nbytes, 0
        return nbytes, now - self._since

    def took(self, nbytes: int, now: float, busy: bool) -> None:
        """Note that a reader took so many bytes; how fast that goes says nothing of connections
        when none is in use."""
        if not busy or not self._slice_since:
            self._slice_since, self._slice_bytes = now if busy else 0.0, 0
            return
        self._slice_bytes += nbytes
        if self._slice_bytes >= SLICE_BYTES:
            self._lanes.note(self._slice_bytes, now - self._slice_since)
            self._slice_since, self._slice_bytes = now, 0
