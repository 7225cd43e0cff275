"""Whether a remote store is asked: one that fails is left alone, and tried again by one call at a
time."""

import logging
import threading
from collections.abc import Callable

from omlx_cache_storage.breaker import CircuitBreaker
from omlx_cache_storage.remote.engine import RemoteError

_log = logging.getLogger(__name__)


class BackOff:
    """A `CircuitBreaker` for any number of threads, with why it opened. Waits for nothing.

    `changed` tells of a change, outside of the lock. `_lock` guards `_breaker`, `_why`, `_stalled`
    (small answers say nothing: networks lose large packets, and bring small ones) and `_rests`.
    """

    def __init__(self, changed: Callable[[str], None] = lambda why: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._breaker = CircuitBreaker()
        self._why = ""
        self._stalled = False
        self._rests = 0

    @property
    def why(self) -> str:
        """Why nobody may ask now; "" when the store may be asked."""
        if not self._why:
            return ""
        with self._lock:
            return self._why if self._breaker.is_open else ""

    @property
    def trouble(self) -> str:
        """Why the store was left alone; "" once it has answered again."""
        return self._why

    @property
    def rests(self) -> int:
        """How often the store was left alone after it had answered."""
        return self._rests

    def enter(self) -> None:
        """Raise RemoteError while the store is left alone. Whoever may ask reports how it went."""
        with self._lock:
            if self._breaker.enter():
                return
        raise RemoteError("resting", f"the store is left alone: {self._why}")

    def left(self) -> None:
        """Take back an `enter` of this thread that says nothing of the store."""
        with self._lock:
            self._breaker.left()

    def succeeded(self, *, read: bool = False) -> None:
        """Note an answer; after a read that stalled only a `read` says that all is well."""
        with self._lock:
            self._breaker.succeeded(sure=read or not self._stalled)
            self._stalled &= not read
            was, self._why = self._why, ""
        if was:
            _log.warning("the remote store answers again")
            self._changed("")

    def failed(self, why: str, *, at_once: bool = False, stalled: bool = False) -> None:
        """Note a failure; one `at_once`, or of a read that `stalled`, is enough."""
        with self._lock:
            self._breaker.failed()
            while (at_once or stalled) and not self._breaker.tripped:
                self._breaker.failed()
            self._stalled |= stalled
            opens = self._breaker.tripped and not self._why
            if opens:
                self._why, self._rests = why, self._rests + 1
        if opens:
            _log.warning("the remote store is left alone for now: %s", why)
            self._changed(why)
