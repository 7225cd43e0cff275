"""Whether a remote store is asked at all: one that fails is left alone, and tried by a probe."""

import logging
import random
import threading
from collections.abc import Callable

from omlx_cache_storage.breaker import FAILURES, FIRST_SECONDS, LONGEST_SECONDS

_log = logging.getLogger(__name__)

_JITTER = 0.5


class Circuit:
    """Closed while the store answers; open from `FAILURES` in a row, or from a `trip`, until a
    probe got an answer. No request is ever a probe.

    A thread of its own probes while it is open: after `FIRST_SECONDS`, then twice as long each time
    up to `LONGEST_SECONDS`, each up to half as long or as long again by chance, so that machines
    which lost the store together do not come back together. A store that answers a probe and then
    fails at the same again rests twice as long the next time. `_lock` guards `_failures`, `_why`,
    `_rests`, `_pause`, `_stalled` and `_thread`; `changed` tells of a change outside of it.
    """

    def __init__(
        self,
        probe: Callable[[], object],
        *,
        first_seconds: float = FIRST_SECONDS,
        changed: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._probe = probe
        self._first = self._pause = first_seconds
        self._changed = changed
        self._lock = threading.Lock()
        self._failures = 0
        self._why = ""
        self._rests = 0
        self._stalled = False
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

    def succeeded(self, *, read: bool = False) -> None:
        """Note an answer. After a read that stalled only a `read` says that all is well: networks
        lose large packets, and bring small ones."""
        if not self._failures and self._pause == self._first:
            return
        with self._lock:
            self._failures = 0
            if (read or not self._stalled) and not self._why:
                self._pause, self._stalled = self._first, False

    def failed(self, why: str) -> None:
        """Note a failure."""
        with self._lock:
            self._failures += 1
            if self._failures < FAILURES:
                return
        self._open(why, stalled=False)

    def trip(self, why: str) -> None:
        """Let nobody ask from now on, but the probe: a read stalled."""
        self._open(why, stalled=True)

    def close(self, timeout: float) -> bool:
        """End the probing, and begin no more; False when a probe hangs for longer."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, timeout))
        return not thread.is_alive()

    def _open(self, why: str, *, stalled: bool) -> None:
        with self._lock:
            if self._why or self._closing.is_set():
                return
            thread = threading.Thread(target=self._run, name="omlx-cache-remote-probe", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # No thread can be had, so nobody would ever close it: the next failure tries again.
                return
            self._thread, self._why, self._rests = thread, why, self._rests + 1
            self._stalled |= stalled
        _log.warning("the remote store is left alone for now: %s", why)
        self._changed(why)

    def _run(self) -> None:
        while not self._closing.wait(self._next_pause()):
            try:
                self._probe()
            except Exception as error:
                _log.debug("the remote store still fails: %s", error)
                continue
            with self._lock:
                self._why, self._failures = "", 0
            _log.warning("the remote store answers again")
            self._changed("")
            return

    def _next_pause(self) -> float:
        with self._lock:
            seconds = self._pause
            self._pause = min(2 * seconds, LONGEST_SECONDS)
        return min(seconds * random.uniform(1 - _JITTER, 1 + _JITTER), LONGEST_SECONDS)
