"""The stores to be seen: those that run, found again and again."""

import threading
import time
from collections.abc import Callable, Sequence

from omlx_cache_daemon.client import is_listening
from omlx_cache_daemon.screen.watched import ANSWER_SECONDS, StoreSeen, Watched
from omlx_cache_daemon.stores import RunningStore

_GONE_SECONDS = 60.0


class Lookout:
    """Watches every store that `find` gives, those that come later too.

    `find` returns where stores may be, listening or not. Any thread may call `processes`; `_lock`
    guards `_watched` and
    `_gone`.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[RunningStore]],
        seconds: float,
        patience: float = ANSWER_SECONDS,
    ) -> None:
        self._find, self._seconds, self._patience = find, seconds, patience
        self._lock = threading.Lock()
        self._watched: dict[str, Watched] = {}
        self._gone: list[tuple[float, StoreSeen]] = []
        self._stopped = threading.Event()
        self._discover()
        self._thread = threading.Thread(target=self._run, name="omlx-cache-lookout", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have all threads end; waits for none."""
        self._stopped.set()
        with self._lock:
            for watched in self._watched.values():
                watched.stop()

    def wait(self, seconds: float) -> None:
        """Wait until each store answered once or failed to, for so long at most."""
        deadline = time.monotonic() + seconds
        with self._lock:
            waited_for = list(self._watched.values())
        for watched in waited_for:
            watched.looked.wait(max(0.0, deadline - time.monotonic()))

    def processes(self) -> list[StoreSeen]:
        """Return what is known of the stores that are there, in the order of their process ids; one
        that does not answer has an error that says so."""
        with self._lock:
            asked = [watched for watched in self._watched.values() if watched.looked.is_set()]
        known = [watched.now for watched in asked if not watched.now.gone]
        return sorted(known, key=lambda process: (process.pid or 0, process.socket))

    def gone(self) -> list[StoreSeen]:
        """Return those that ended in the last minute."""
        with self._lock:
            since = time.monotonic() - _GONE_SECONDS
            self._gone = [(at, process) for at, process in self._gone if at > since]
            return [process for _, process in self._gone]

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._discover()

    def _discover(self) -> None:
        found = {str(store.path): store for store in self._find()}
        with self._lock:
            for path, watched in list(self._watched.items()):
                if watched.now.gone or path not in found:
                    watched.stop()
                    del self._watched[path]
                    if watched.now.pid is not None:
                        self._gone.append((time.monotonic(), watched.now))
            new = [store for path, store in found.items() if path not in self._watched]
        # Not under the lock: one that hangs may make even this wait.
        listening = [store for store in new if is_listening(store.path)]
        with self._lock:
            for store in listening:
                if not self._stopped.is_set():
                    self._watched[str(store.path)] = Watched(store, self._seconds, self._patience)
