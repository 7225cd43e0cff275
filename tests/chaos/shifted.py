"""This process's wall clock, set back or forth by as much as one says."""

import time
from unittest import mock


class ShiftedClock:
    """From `start` to `stop`, `time.time` and `time.time_ns` are off by `offset_ns`."""

    def __init__(self, offset_ns: int = 0) -> None:
        self.offset_ns = offset_ns
        real = time.time_ns

        def shifted_ns() -> int:
            return real() + self.offset_ns

        def shifted() -> float:
            return shifted_ns() / 1e9

        self._patches = [mock.patch("time.time_ns", shifted_ns), mock.patch("time.time", shifted)]

    def start(self) -> None:
        for patch in self._patches:
            patch.start()

    def stop(self) -> None:
        for patch in self._patches:
            patch.stop()
