"""Ctrl-C at random instants of the calls that a scheduler makes on its main thread.

A timer's signal stands in for SIGINT, which stays with whoever runs the campaign; both run a
handler that raises KeyboardInterrupt between two instructions of the main thread.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from ..requests import Interrupted
from .base import Fault


class Interrupts(Fault):
    name = "interrupts"
    threads = 1

    def begin(self) -> None:
        self._armed = False
        self._before = signal.signal(signal.SIGALRM, self._interrupt)
        self.world.interrupt = self._interrupting

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise Interrupted

    @contextlib.contextmanager
    def _interrupting(self) -> Iterator[None]:
        if self.draw.random() < 0.7:
            yield
            return
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self.draw.choice([1e-4, 1e-3, 5e-3]))
            yield
        except Interrupted:
            self.world.count()
            raise
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def calm(self) -> None:
        self.world.interrupt = contextlib.nullcontext

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
