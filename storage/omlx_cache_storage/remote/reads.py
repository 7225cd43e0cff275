"""Pages on their way from a remote store: in the order in which they are wanted, over several
connections, pipelined, and no more of them at a time than a window holds."""

import threading
import time
from collections.abc import Callable, Sequence

from omlx_cache_storage.errors import PageNotSent
from omlx_cache_storage.interrupts import done_within, uninterrupted
from omlx_cache_storage.page import Buffer, PageId
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.coming import Coming, Expected, Unit, Value, Wanted
from omlx_cache_storage.remote.engine import Part, RemoteEngine, RemoteError, known_error
from omlx_cache_storage.remote.lanes import Lanes, Pace
from omlx_cache_storage.remote.slabs import Sink
from omlx_cache_storage.remote.window import WINDOW_BYTES, Window

HANGING = 3
"""For each connection so many more threads may hang in the store's client."""
_NEARLY = 0.9
"""The client's own time-out is as long as a reader's, and may be seen first."""
PROGRESS_BYTES = 1 << 20
"""What has to come within the time-out, or a part that ends: at less than half a megabyte a second
all of it is computed sooner."""
STAYING = 2
"""Values that wait, at most, for whoever takes them after they were looked into."""
FIRST_LANES = 2
"""Connections in use before it is known what more of them bring, where a server is one thread."""


class RemoteReads:
    """Reads values on at most `connections` threads. Any thread may call; `take` alone waits.

    `failed` is told of what the engine raised, `stalled` when nothing came any more, `came` how
    many bytes came, and `measured` in how long so many came over all connections together.

    Mutable, guarded by `_lock`, which is held over no I/O: the `_window`, `_workers` (each with
    when something came, or it asked, last), `_last` (when anything came) and `_pace`.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        connections: int,
        stalled_seconds: float,
        *,
        failed: Callable[[RemoteError], None],
        stalled: Callable[[], None],
        came: Callable[[int], None],
        measured: Callable[[int, float], None],
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._engine = engine
        self._connections = connections
        self._stalled_seconds = stalled_seconds
        self._failed = failed
        self._stalled = stalled
        self._came = came
        self._measured = measured
        self._most = (1 + HANGING) * connections
        self._pool = ReaderPool(connections, "omlx-cache-remote-read", most=self._most)
        first = connections if engine.part_bytes is None else FIRST_LANES
        self._pace = Pace(Lanes(connections, first))
        self._lock = threading.Lock()
        self._window = Window(window_bytes, engine.part_bytes, self._pace)
        self._workers: dict[object, float] = {}
        self._last = 0.0
        self._closed = False

    @property
    def held_bytes(self) -> int:
        return self._window.held_bytes

    @property
    def peak_bytes(self) -> int:
        return self._window.peak_bytes

    @uninterrupted
    def expect(self, wanted: Sequence[Wanted]) -> Expected:
        """Begin to read values in order; returns at once."""
        expected = Expected(self.end)
        with self._lock:
            if self._closed or not wanted:
                expected.closed = True
                return expected
            self._window.expect(expected, wanted)
        self._wake()
        return expected

    def is_expected(self, page: PageId) -> bool:
        """Return whether a page is on its way, or has come, and nobody has taken it."""
        with self._lock:
            return self._window.find(page) is not None

    @uninterrupted
    def take(self, wanted: Wanted, *, again: bool = False) -> Value:
        """Return a value's bytes in parts; waits for as long as something comes, but no longer than
        the time-out without. Raises PageUnreadable, its text begins with a word of `reasons`.

        With `again` it stays for whoever takes it next, until what is expected by then ends.
        """
        with self._lock:
            if self._closed:
                raise PageNotSent(reasons.UNREACHABLE, "the remote tier is closed")
            coming = self._window.take(wanted, stays=again, end=self.end)
        self._wake()
        try:
            return self._wait(coming, again)
        finally:
            if again:
                self._let_few_stay(STAYING)

    @uninterrupted
    def end(self, expected: Expected) -> None:
        """Ask for no more of what nobody waits for."""
        with self._lock:
            if expected.closed:
                return
            stays = self._window.close(expected)
        if not stays:
            self._let_few_stay(0)
        self._wake()

    def _let_few_stay(self, most: int) -> None:
        with self._lock:
            gone = self._window.staying[: max(0, len(self._window.staying) - most)]
        for expected in gone:
            self.end(expected)

    @uninterrupted
    def close(self, timeout: float) -> bool:
        """Read nothing more; False when a read hangs for longer."""
        with self._lock:
            self._closed = True
            expected = self._window.everything()
        for one in expected:
            self._fail(one, reasons.UNREACHABLE, "the remote tier is closed")
            self.end(one)
        return self._pool.stop(timeout)

    def check_integrity(self) -> None:
        """Assert that the window's books agree with the values in it."""
        with self._lock:
            self._window.check_integrity()
            assert len(self._workers) <= self._most

    # For whoever waits.

    def _wait(self, coming: Coming, again: bool) -> Value:
        # Before it waited nobody may have asked for the page: the window was full.
        began = time.monotonic()
        try:
            while not coming.future.done():
                since = max(began, coming.expected.progress)
                left = since + self._stalled_seconds - time.monotonic()
                if left <= 0:
                    self._give_up(coming.expected)
                    break
                done_within(coming.future, left)
            return coming.future.result(0)
        finally:
            with self._lock:
                self._window.settle(coming, PageNotSent(reasons.LOST, "nobody wanted it any more"))
                if again and coming.future.exception(0) is None:
                    coming.taken = False
                else:
                    self._pace.took(coming.held, time.monotonic(), bool(self._workers))
                    self._window.release(coming)
            self._wake()

    def _give_up(self, expected: Expected) -> None:
        """Let a restore whose pages stand still have none of those that are left."""
        self._blame(expected, RemoteError("timeout", "a connection brought nothing any more"))
        self._fail(expected, reasons.TIMEOUT, "nothing came any more")

    def _blame(self, expected: Expected, error: RemoteError) -> None:
        """Tell of a failure, once for all of its pages: of the store, when nobody got anything for
        as long as one may wait."""
        with self._lock:
            silent = time.monotonic() - self._last
            told, expected.failed = expected.failed, True
        if told:
            return
        if error.reason == "timeout" and silent >= _NEARLY * self._stalled_seconds:
            self._stalled()
        else:
            self._failed(error)

    def _fail(self, expected: Expected, reason: str, text: str) -> None:
        with self._lock:
            self._window.fail(expected, PageNotSent(reason, text))

    def _hanging(self, now: float) -> int:
        return sum(since < now - self._stalled_seconds for since in self._workers.values())

    # On the threads of the pool.

    @uninterrupted
    def _wake(self) -> None:
        """Have as many workers as there is to do, and connections."""
        with self._lock:
            now = time.monotonic()
            hanging = self._hanging(now)
            waiting = self._window.waiting
            wanted = min(
                self._pace.width + hanging - len(self._workers),
                self._most - len(self._workers),
                waiting,
            )
            if self._closed or wanted <= 0:
                return
            if not self._workers:
                self._pace.begin(now)
            workers = [object() for _ in range(wanted)]
            self._workers |= dict.fromkeys(workers, now)
        self._pool.allow(self._connections + hanging)
        for worker in workers:
            try:
                self._pool.submit(self._work, worker)
            except RuntimeError:
                with self._lock:
                    self._workers.pop(worker, None)

    def _work(self, worker: object) -> None:
        try:
            while batch := self._asked_by(worker):
                self._bring(batch, worker)
        finally:
            with self._lock:
                self._workers.pop(worker, None)

    def _asked_by(self, worker: object) -> list[Unit]:
        """Return what a worker asks for next; it leaves when that is nothing."""
        with self._lock:
            now = time.monotonic()
            self._workers[worker] = now
            spare = len(self._workers) > self._pace.width + self._hanging(now)
            batch = [] if self._closed or spare else self._window.next()
            if batch:
                return batch
            self._workers.pop(worker, None)
            nbytes, seconds = (0, 0.0) if self._workers else self._pace.end(now)
        if nbytes:
            self._measured(nbytes, seconds)
        return []

    def _bring(self, batch: Sequence[Unit], worker: object) -> None:
        expected = batch[0].coming.expected

        def came(nbytes: int) -> None:
            with self._lock:
                expected.since += nbytes
                if expected.since >= PROGRESS_BYTES:
                    expected.since = 0
                    self._last = expected.progress = self._workers[worker] = time.monotonic()

        try:
            found = self._read([unit.part for unit in batch], Sink(self._window.slabs.memory, came))
        except Exception as error:
            known = known_error(error)
            # First: whoever is told looks for another way, and should not find this one again.
            self._blame(expected, known)
            self._fail(expected, reasons.reason_of(known.reason), str(known))
            return
        nbytes = sum(memoryview(part).nbytes for part in found if part is not None)
        self._came(nbytes)
        with self._lock:
            self._last = expected.progress = time.monotonic()
            self._pace.brought(nbytes)
            for unit, part in zip(batch, found, strict=True):
                self._window.put(unit, part)
        self._wake()

    def _read(self, parts: Sequence[Part], sink: Sink) -> list[Buffer | None]:
        try:
            return self._engine.read(parts, sink)
        except RemoteError as error:
            if error.reason != "lost" or self._closed:
                raise
            # A connection that was idle for long may have ended: another one is tried once.
            return self._engine.read(parts, sink)
