"""Whether a remote store is asked at all: one that fails is left alone, and tried by a probe."""

import logging
import random
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)

FAILURES = 3
"""Failures in a row that are taken for bad luck."""
FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
_JITTER = 0.5


class Circuit:
    """Closed while the store answers; open from `FAILURES` in a row, or from a `trip`, until a
    probe got an answer. No request is ever a probe.

    A thread of its own probes while it is open: after `FIRST_SECONDS`, then twice as long each time
    up to `LONGEST_SECONDS`, each half as long or as long again by chance, so that machines which
    lost the store together do not come back together. `_lock` guards `_failures`, `_why`, `_rests`
    and `_thread`; `changed` tells of a change outside of it.
    """

    def __init__(
        self,
        probe: Callable[[], object],
        *,
        first_seconds: float = FIRST_SECONDS,
        changed: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._probe = probe
        self._first = first_seconds
        self._changed = changed
        self._lock = threading.Lock()
        self._failures = 0
        self._why = ""
        self._rests = 0
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    @property
    def why(self) -> str:
        """Why nobody may ask now; "" when the store may be asked."""
        return self._why

    @property
    def rests(self) -> int:
        """How often the store was left alone."""
        return self._rests

    def succeeded(self) -> None:
        if self._failures:
            with self._lock:
                self._failures = 0

    def failed(self, why: str) -> None:
        """Note a failure."""
        with self._lock:
            self._failures += 1
            if self._failures < FAILURES:
                return
        self.trip(why)

    def trip(self, why: str) -> None:
        """Let nobody ask from now on, but the probe."""
        with self._lock:
            if self._why or self._closing.is_set():
                return
            self._why, self._rests = why, self._rests + 1
            self._thread = threading.Thread(
                target=self._run, name="omlx-cache-remote-probe", daemon=True
            )
            self._thread.start()
        _log.warning("the remote store is left alone for now: %s", why)
        self._changed(why)

    def close(self, timeout: float) -> bool:
        """End the probing, and begin no more; False when a probe hangs for longer."""
        self._closing.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, timeout))
        return not thread.is_alive()

    def _run(self) -> None:
        seconds = self._first
        while not self._closing.wait(seconds * random.uniform(1 - _JITTER, 1 + _JITTER)):
            try:
                self._probe()
            except Exception as error:
                _log.debug("the remote store still fails: %s", error)
                seconds = min(2 * seconds, LONGEST_SECONDS)
                continue
            with self._lock:
                self._why, self._failures, self._thread = "", 0, None
            _log.warning("the remote store answers again")
            self._changed("")
            return
