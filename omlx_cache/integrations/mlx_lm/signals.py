"""SIGINT, SIGTERM and SIGHUP, counted. A handler runs between any two instructions of the main
thread, so that it must take no lock, nor wake anybody: who waits for signals looks at the count."""

import logging
import signal
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
HURRY_SECONDS = 5.0
"""What a second signal leaves to the end."""


class Signals:
    """Counts SIGINT, SIGTERM and SIGHUP while the block runs, on the main thread.

    The process ends after the block, and signals from then on are ignored: one more would interrupt
    that end. `count` is written by the handler, and by nothing else.
    """

    def __init__(self) -> None:
        self.count = 0
        # The terminal's end ends the server, unless `nohup` has said that it shall not.
        ignores = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._numbers = [signal.SIGINT, signal.SIGTERM, *([] if ignores else [signal.SIGHUP])]

    def __enter__(self) -> "Signals":
        for number in self._numbers:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, *_: object) -> None:
        self.count += 1


def attended(work: Callable[[threading.Event], bool], signals: Signals) -> bool:
    """Run `work` on a thread and return what it returns; False when people would not wait for it.

    The main thread can answer a signal at any moment meanwhile: a second one sets the event that
    `work` is called with, and leaves it `HURRY_SECONDS`; a third leaves it nothing. A thread that
    is left behind ends with the process.
    """
    hurry = threading.Event()
    answers: list[bool] = []

    def run() -> None:
        try:
            answers.append(work(hurry))
        except Exception:
            _log.exception("the server could not be ended properly")

    worker = threading.Thread(target=run, name="omlx-cache-stop", daemon=True)
    worker.start()
    deadline: float | None = None
    while worker.is_alive():
        time.sleep(POLL_SECONDS)
        if signals.count >= 2 and deadline is None:
            hurry.set()
            deadline = time.monotonic() + HURRY_SECONDS
        if deadline is not None and (signals.count >= 3 or time.monotonic() > deadline):
            # Nothing is logged: whoever reads the log may be what everything waits for.
            return False
    return bool(answers and answers[0])
