"""A wall clock that is set back and forth by seconds, days and years."""

from ..requests import Requester
from ..shifted import ShiftedClock
from .base import Fault

_JUMPS = (0.001, 1.0, 3_600.0, 86_400.0, 86_400.0 * 365 * 20)


class ClockJumps(Fault):
    name = "clock jumps"

    def begin(self) -> None:
        self._clock = ShiftedClock()
        self._clock.start()
        self._latest_ns = 0

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.2:
            jump = self.draw.choice(_JUMPS) * self.draw.uniform(-1, 1)
            # A clock before 1970 is no clock.
            shifted_ns = int(self._clock.offset_ns + jump * 1e9)
            self._clock.offset_ns = max(shifted_ns, -86_400 * 10**9 * 365 * 40)
            self._latest_ns = max(self._latest_ns, self._clock.offset_ns)
            self.world.count()
        if self.draw.random() < 0.03:
            self.world.reopen()

    def calm(self) -> None:
        # Pages that were used in what is now the future are worth more than any new one.
        self._clock.offset_ns = self._latest_ns

    def end(self) -> None:
        self._clock.stop()
