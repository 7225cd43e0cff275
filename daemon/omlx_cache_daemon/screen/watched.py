"""One store that is asked again and again, in a thread of its own."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace

from omlx_cache.control.errors import ControlError
from omlx_cache.requests.explanation import RequestRecord
from omlx_cache_daemon.client import is_listening
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.rates import Row, rates
from omlx_cache_daemon.replies import as_answer, as_map, directory_of
from omlx_cache_daemon.screen.lately import Records
from omlx_cache_daemon.stores import RunningStore
from omlx_cache_daemon.titles import title
from omlx_cache_storage.stats import Stats

RATE_SECONDS = 10.0
"""Rates are means of so long: one request a second is not 0 and 10 in turn."""

ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """What a store said last, and why it says nothing now, if so. Plain values, never changed."""

    pid: int | None
    socket: str
    title: str
    error: str | None = None
    gone: bool = False
    directory: str | None = None
    stats: Stats | None = None
    rates: Row = field(default_factory=dict)
    records: tuple[RequestRecord, ...] = ()


class Watched:
    """Asks one store every so many seconds, until `stop`; what it hangs on holds up nobody else.
    Each answer is waited for as long as `patience` says.

    Any thread may read `now`, which is replaced whole. The rest belongs to the thread.
    """

    def __init__(self, store: RunningStore, seconds: float, patience: float) -> None:
        self.store = store
        self.now = StoreSeen(store.pid, str(store.path), "store")
        self.looked = threading.Event()
        self._seconds, self._patience = seconds, patience
        self._stats: deque[tuple[float, Stats]] = deque()
        self._records = Records()
        self._stopped = threading.Event()
        # A daemon, since a store that hangs may be waited for when the screen is left.
        self._thread = threading.Thread(target=self._run, name="omlx-cache-top", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end after its next answer; waits for none."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._look()
            self.looked.set()
            if self.now.gone:
                return
            self._stopped.wait(self._seconds)

    def _look(self) -> None:
        client, before = self.store.client(self._patience), self.now
        try:
            identity = as_map(client.call("ps"))
            stats = as_answer(Stats, client.call("stats"))
            self._records.take(as_map(client.call("requests", **self._records.question())))
        except (CommandError, ControlError) as error:
            gone = not is_listening(self.store.path)
            said = "has gone" if gone else str(error).removeprefix(f"{self.store.path}: ")
            self.now = replace(before, error=said, gone=gone, rates={})
            return
        pid = identity.get("pid")
        self.now = StoreSeen(
            pid if isinstance(pid, int) else self.store.pid,
            before.socket,
            title(identity),
            directory=directory_of(identity),
            stats=stats,
            rates=self._rates(stats),
            records=tuple(self._records.latest()),
        )

    def _rates(self, stats: Stats) -> Row:
        """Return the rates of the last ten seconds, {} at the first look."""
        at = time.monotonic()
        while len(self._stats) > 1 and at - self._stats[1][0] >= RATE_SECONDS:
            self._stats.popleft()
        before = self._stats[0][1] if self._stats else None
        self._stats.append((at, stats))
        return {} if before is None else rates(before, stats)
