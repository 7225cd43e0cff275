"""SIGINT, SIGTERM and SIGHUP, counted. A handler runs between any two instructions of the main
thread, so that it must take no lock: one that sets an Event waits for ever for a wait that it
interrupted."""

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Signals:
    """Counts SIGINT, SIGTERM and SIGHUP while the block runs, on the main thread.

    With `last` the process ends after the block, and signals from then on are ignored: one more
    would interrupt that end. `count` is written by the handler, and by nothing else.
    """

    def __init__(self, *, last: bool = False) -> None:
        self.count = 0
        self._last = last
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> "Signals":
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # The terminal's end ends the server, unless `nohup` has said that it shall not.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._last else handler)
        os.close(self._wake)
        os.close(self._woken)

    def wait(self, seconds: float) -> None:
        """Block for `seconds`, or until a signal comes."""
        select.select([self._woken], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._woken, 512)

    def _handle(self, *_: object) -> None:
        self.count += 1
        with suppress(BlockingIOError):
            os.write(self._wake, b"\0")
