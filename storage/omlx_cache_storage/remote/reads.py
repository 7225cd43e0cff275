"""Values on their way from a remote store: read ahead in order, on several connections, and no more
of them at a time than may lie in memory; and what a remote tier counts."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from omlx_cache_storage.errors import PageNotSent, PageUnreadable
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.page import Buffer, PageId
from omlx_cache_storage.readers import ReaderPool, came
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.engine import RemoteError, known_error

AHEAD_BYTES = 64 << 20
"""Bytes that were asked for and not taken yet; a reader's own page comes whatever they are."""
AHEAD_PAGES = 2
"""So many pages come whatever they are, too: one is read while the next one comes."""
HANGING = 3
"""For each connection so many more threads may hang in the store's client."""
RECENT = 32
"""Answers that say what the way to the store takes."""
LARGE_BYTES = 256 * 1024
"""A read of less says more of the round trip than of the rate."""
_NEARLY = 0.9
"""The client's own time-out is as long as a reader's, and may be seen first."""

Value = list[Buffer]


class WantedValue(NamedTuple):
    """A value to be read: its page, its name, its length, 0 when that is not known, and about how
    long it is. With `is_head` only its first `nbytes` are, for somebody who waits."""

    page: PageId
    name: str
    nbytes: int
    about: int = 0
    is_head: bool = False


class _InFlight(NamedTuple):
    """A value that was asked for, and what it takes of the memory for them."""

    future: "Future[Value]"
    nbytes: int


class Expected(AbstractContextManager["Expected"]):
    """Pages that somebody is about to read; `close` ends that, any number of times.

    `queue` (not asked for yet, in order), `in_flight` (asked for, and not taken) and `error` (why
    no more of them come) belong to the reads, and are guarded by their lock.
    """

    def __init__(
        self, end: Callable[["Expected"], None], wanted: Sequence[WantedValue] = ()
    ) -> None:
        self._end = end
        self.queue = {one.page: one for one in wanted}
        self.in_flight: dict[PageId, _InFlight] = {}
        self.error: PageUnreadable | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def has(self, page: PageId) -> bool:
        return page in self.queue or page in self.in_flight

    def close(self) -> None:
        """Read no more of what nobody has taken, and give its memory back. Waits for nothing."""
        self._end(self)


class RemoteReads:
    """Reads values on `connections` threads, and some more while some hang. Any thread may call;
    `take` alone waits.

    `read` returns a value, or raises RemoteError for the store and PageUnreadable for the page;
    `failed` is told of the former once for all that is expected together, and whether the store
    brought nothing to anybody for as long as one may wait.

    `_lock`, which is held over no I/O, guards `_open`, `held_bytes`, `peak_bytes`, `_closed`, and
    `_answered` (when the store last answered a read).
    """

    def __init__(
        self,
        read: Callable[[WantedValue], Value],
        connections: int,
        stalled_seconds: float,
        failed: Callable[[RemoteError, bool], None],
        *,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        self._read_value = read
        self._stalled_seconds = stalled_seconds
        self._failed = failed
        self._ahead_bytes = ahead_bytes
        self._pool = ReaderPool(
            connections, "omlx-cache-remote-read", most=(1 + HANGING) * connections
        )
        self._lock = threading.Lock()
        self._open: list[Expected] = []
        self.held_bytes = self.peak_bytes = 0
        self._answered = 0.0
        self._closed = False

    @uninterrupted
    def expect(self, wanted: Sequence[WantedValue]) -> Expected:
        """Begin to read values in order; returns at once."""
        with self._lock:
            expected = Expected(self.end, () if self._closed else wanted)
            self._open.append(expected)
            self._read_ahead()
        return expected

    def is_expected(self, page: PageId) -> bool:
        """Return whether a page is on its way, or has come, and nobody has taken it."""
        with self._lock:
            return any(expected.has(page) for expected in self._open)

    @uninterrupted
    def take(self, wanted: WantedValue) -> Value:
        """Return a value's bytes in parts; waits for as long as something comes, but no longer than
        the time-out without. Raises PageUnreadable, its text begins with a word of `reasons`."""
        with self._lock:
            if self._closed:
                raise PageNotSent(reasons.UNREACHABLE, "the remote tier is closed")
            expected = Expected(self.end)
            if not wanted.is_head:
                expected = next((one for one in self._open if one.has(wanted.page)), expected)
            in_flight = expected.in_flight.pop(wanted.page, None)
            expected.queue.pop(wanted.page, None)
            if in_flight is None and expected.error is None:
                in_flight = self._begin(expected, wanted)
        try:
            return self._wait(expected, in_flight)
        finally:
            with self._lock:
                self.held_bytes -= 0 if in_flight is None else in_flight.nbytes
                self._read_ahead()

    @uninterrupted
    def end(self, expected: Expected) -> None:
        """Ask for no more of what nobody waits for."""
        with self._lock:
            if expected in self._open:
                self._open.remove(expected)
            expected.queue.clear()
            while expected.in_flight:
                _, in_flight = expected.in_flight.popitem()
                in_flight.future.cancel()
                self.held_bytes -= in_flight.nbytes
            self._read_ahead()

    @uninterrupted
    def close(self, timeout: float) -> bool:
        """Read nothing more; False when a read hangs for longer."""
        with self._lock:
            self._closed = True
            left = list(self._open)
        for expected in left:
            self.end(expected)
        return self._pool.stop(timeout)

    def check_integrity(self) -> None:
        """Assert that the books agree with the values in flight, when nobody waits for one."""
        with self._lock:
            assert self.held_bytes == sum(
                one.nbytes for expected in self._open for one in expected.in_flight.values()
            )

    def _read_ahead(self) -> None:
        """Ask for what is expected, as far as there is room; under the lock."""
        ahead = sum(len(expected.in_flight) for expected in self._open)
        for expected in self._open:
            while expected.queue and expected.error is None:
                page, wanted = next(iter(expected.queue.items()))
                nbytes = wanted.nbytes or wanted.about
                if ahead >= AHEAD_PAGES and self.held_bytes + nbytes > self._ahead_bytes:
                    return
                del expected.queue[page]
                expected.in_flight[page] = self._begin(expected, wanted)
                ahead += 1

    def _begin(self, expected: Expected, wanted: WantedValue) -> _InFlight:
        future: Future[Value]
        try:
            future = self._pool.submit(self._read, expected, wanted)
        except RuntimeError:
            future = Future()
            future.set_exception(PageNotSent(reasons.FAILED, "there is no thread to read it"))
        nbytes = wanted.nbytes or wanted.about
        self.held_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return _InFlight(future, nbytes)

    def _wait(self, expected: Expected, in_flight: _InFlight | None) -> Value:
        if in_flight is None or (expected.error is not None and not in_flight.future.done()):
            raise expected.error or PageNotSent(reasons.LOST, "nobody wanted it any more")
        if not came(in_flight.future, self._stalled_seconds):
            # First: whoever is told looks for another way, and should not find this one again.
            error = self._blame(expected, RemoteError("timeout", "nothing came any more"))
            in_flight.future.cancel()
            self._pool.allow_one_more()
            raise error
        if in_flight.future.cancelled():
            raise PageNotSent(reasons.UNREACHABLE, "the remote tier is closed")
        return in_flight.future.result(0)

    def _blame(self, expected: Expected, error: RemoteError) -> PageUnreadable:
        """Let nothing more come of what is expected, and tell of a failure once for all of it."""
        unsent = PageNotSent(reasons.reason_of(error.reason), str(error))
        with self._lock:
            told = expected.error is not None
            expected.error = expected.error or unsent
            silent = time.monotonic() - self._answered >= _NEARLY * self._stalled_seconds
        if not told:
            self._failed(error, error.reason == "timeout" and silent)
        return unsent

    def _read(self, expected: Expected, wanted: WantedValue) -> Value:
        """Read a value, on a thread of the pool."""
        try:
            value = self._read_value(wanted)
        except PageUnreadable:
            raise
        except Exception as error:
            raise self._blame(expected, known_error(error)) from None
        with self._lock:
            self._answered = time.monotonic()
        return value


class RemoteTally:
    """Counts of a remote tier, by the names of `RemoteUsage`, and what the latest answers took.

    `_lock` guards all: also how many reads are in flight, since when some are, and the bytes that
    came then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._trips: deque[float] = deque(maxlen=RECENT)
        self._rates: deque[float] = deque(maxlen=RECENT)
        self._reading = self._nbytes = 0
        self._since = 0.0

    def add(self, **more: int) -> None:
        """Add to counts by their names."""
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count

    def note_error(self, reason: str) -> None:
        with self._lock:
            self._errors[reason] += 1

    def note_trip(self, seconds: float) -> None:
        """Note a question whose answer took so long, and was short."""
        with self._lock:
            self._trips.append(seconds)

    def begin_read(self) -> None:
        """Note that a read begins."""
        with self._lock:
            if not self._reading:
                self._since, self._nbytes = time.monotonic(), 0
            self._reading += 1

    def end_read(self, nbytes: int) -> None:
        """Note that a read brought so many bytes; the rate is that of all reads together."""
        with self._lock:
            self._reading -= 1
            self._nbytes += nbytes
            seconds = time.monotonic() - self._since
            if not self._reading and self._nbytes >= LARGE_BYTES and seconds > 0:
                self._rates.append(self._nbytes / seconds)

    def usage(self) -> dict[str, Any]:
        """Return what was counted, the shortest of the latest round trips, and the median of the
        latest rates; what is left out is 0."""
        with self._lock:
            rates = sorted(self._rates) or [0.0]
            return {
                **self._counts,
                "errors": dict(self._errors),
                "latency_seconds": min(self._trips, default=0.0),
                "bytes_per_second": rates[len(rates) // 2],
            }
