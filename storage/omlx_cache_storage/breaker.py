"""A circuit breaker: after some failures in a row one backs off from a resource, then probes it."""

import threading
import time

FAILURES = 3
"""Failures in a row that are taken for bad luck."""
FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""How long one backs off: the first time, and at most. Doubles with each failed try."""


class CircuitBreaker:
    """Says whether a resource may be used. Not thread-safe: its owner's lock guards it.

    A thread that gets True from `enter` reports with `succeeded`, `failed` or, when it found out
    neither, `left`. After `most` failures in a row no thread enters for the first of `bounds`; the
    pause doubles each time, up to the second. After it one thread at a time enters until one
    succeeds. `_trying` is the thread whose try this is, 0 without one: reports of threads that
    entered before end no try.
    """

    __slots__ = ("_bounds", "_failures", "_most", "_seconds", "_trying", "_until")

    def __init__(self, most: int = FAILURES, bounds: tuple[float, float] | None = None) -> None:
        self._most = most
        self._bounds = bounds
        self._failures = 0
        self._seconds = self._until = 0.0
        self._trying = 0

    @property
    def is_open(self) -> bool:
        return self.tripped and (self._trying != 0 or now() < self._until)

    def enter(self) -> bool:
        if self.is_open:
            return False
        if self.tripped:
            self._trying = threading.get_ident()
        return True

    def succeeded(self, *, sure: bool = True) -> None:
        """Let every thread enter again. A success that is not `sure` leaves the next pause as
        long."""
        self._failures = self._trying = 0
        self._until = 0.0
        if sure:
            self._seconds = 0.0

    def failed(self) -> None:
        self.left()
        self._failures += 1
        if self.tripped:
            first, longest = self._bounds or (FIRST_SECONDS, LONGEST_SECONDS)
            self._seconds = min(2 * self._seconds or first, longest)
            self._until = now() + self._seconds

    def left(self) -> None:
        """Take back an `enter` of this thread, if it found out nothing."""
        if self._trying == threading.get_ident():
            self._trying = 0

    def ask_again(self) -> None:
        """Let the next one enter, whatever the time."""
        self._until = 0.0

    @property
    def tripped(self) -> bool:
        return self._failures >= self._most


def now() -> float:
    return time.monotonic()
