"""A wall clock that is set back and forth by seconds, days and years."""

import time
from unittest import mock

from ..requests import Requester
from .base import Fault

_JUMPS = (0.001, 1.0, 3_600.0, 86_400.0, 86_400.0 * 365 * 20)


class ClockJumps(Fault):
    name = "clock jumps"

    def begin(self) -> None:
        self._offset_ns = 0
        real = time.time_ns

        def shifted_ns() -> int:
            return real() + self._offset_ns

        def shifted() -> float:
            return shifted_ns() / 1e9

        self._patches = [mock.patch("time.time_ns", shifted_ns), mock.patch("time.time", shifted)]
        for patch in self._patches:
            patch.start()

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.2:
            jump = self.draw.choice(_JUMPS) * self.draw.uniform(-1, 1)
            # A clock before 1970 is no clock.
            self._offset_ns = max(int(self._offset_ns + jump * 1e9), -86_400 * 10**9 * 365 * 40)
            self.world.count()
        if self.draw.random() < 0.03:
            self.world.reopen()

    def end(self) -> None:
        for patch in self._patches:
            patch.stop()
