"""A thread that may wait for the disk, so that nobody else does."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from omlx_cache_storage.interrupts import wait_in_turns
from omlx_cache_storage.readers import ReaderPool

_log = logging.getLogger(__name__)


class Aside:
    """Calls what asks the disk, one after the other, on a thread of its own. Any thread may call;
    nothing raises. `what` says for a log what is not kept when the disk refuses.

    `_lock` guards `_doing`, what the thread was asked for last, and `_after`, before which it is
    not free again.
    """

    def __init__(self, name: str, what: str) -> None:
        self._what = what
        self._pool = ReaderPool(1, name)
        self._lock = threading.Lock()
        self._doing: Future[None] | None = None
        self._after = 0.0

    @property
    def is_free(self) -> bool:
        """True when the thread has nothing to do, and was left alone for its pause."""
        with self._lock:
            idle = self._doing is None or self._doing.done()
            return idle and time.monotonic() >= self._after

    def start(self, call: Callable[[], None], pause_seconds: float) -> None:
        """Have something called; the thread is not free for `pause_seconds` at least."""
        # The thread may be ended, or not to be had: then nothing is kept, and no more is lost.
        with contextlib.suppress(RuntimeError):
            doing = self._pool.submit(self._quietly, call)
            with self._lock:
                self._doing = doing
                self._after = time.monotonic() + pause_seconds

    def close(self, timeout: float) -> None:
        """Wait for what was started last, and end the thread; within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._lock:
            doing = self._doing
        if doing is not None:
            wait_in_turns(partial(_ended, doing), timeout)
        self._pool.stop(max(0.0, deadline - time.monotonic()))

    def _quietly(self, call: Callable[[], None]) -> None:
        """Call what asks the disk: what cannot be kept costs nobody anything."""
        try:
            call()
        except OSError as error:
            _log.debug("%s: %s", self._what, error)
        except Exception:
            _log.exception(self._what)


def _ended(doing: "Future[None]", seconds: float | None) -> bool:
    try:
        doing.exception(seconds)
    except TimeoutError:
        return False
    return True
