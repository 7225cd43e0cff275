"""Work on a thread of its own, so that the main thread can answer a second signal at any moment."""

import logging
import threading
import time
from collections.abc import Callable

from omlx_cache.integrations.mlx_lm.server.signals import Signals

_log = logging.getLogger(__name__)

HURRY_SECONDS = 5.0
_PATIENT_SIGNALS = 3


def attended(work: Callable[[threading.Event], bool], signals: Signals) -> bool:
    """Run `work` on a thread and return what it returns; False when people would not wait for it.

    A second signal sets the event that `work` is called with, and leaves it `HURRY_SECONDS`; a
    third leaves it nothing. A thread that is left behind ends with the process.
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
        signals.wait(0.05)
        if signals.count >= 2 and deadline is None:
            hurry.set()
            deadline = time.monotonic() + HURRY_SECONDS
        if deadline is not None and (
            signals.count >= _PATIENT_SIGNALS or time.monotonic() > deadline
        ):
            # Nothing is logged: whoever reads the log may be what everything waits for.
            return False
    return bool(answers and answers[0])
