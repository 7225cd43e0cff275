"""Pages on their way from a remote store: in the order in which they are wanted, over several
connections, pipelined, and no more of them at a time than a window holds."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from omlx_cache_storage.errors import PageNotSent, PageUnreadable
from omlx_cache_storage.interrupts import done_within, uninterrupted
from omlx_cache_storage.page import Buffer, PageId
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.coming import (
    TORN,
    Coming,
    Expected,
    Unit,
    Value,
    Wanted,
    length_said_by,
    parts_of,
)
from omlx_cache_storage.remote.engine import Part, RemoteEngine, RemoteError, known_error
from omlx_cache_storage.remote.lanes import Lanes, Pace
from omlx_cache_storage.remote.slabs import Sink, Slabs

WINDOW_BYTES = 64 << 20
"""Bytes that were asked for and not taken yet; a reader's own page comes whatever they are."""
WINDOW_PAGES = 2
"""So many pages come whatever they are, too: one is read while the next one comes."""
TOGETHER_BYTES = 6 << 20
TOGETHER = 32
"""What one connection asks for in one pipeline: a page of 4 MiB with what lies around it in one."""
PART_BYTES = 8 << 20
"""Stretches of a large value that several connections bring at once."""
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

    Mutable, guarded by `_lock`, which is held over no I/O: what is `_open` (in order) and what
    these hold, `_staying` (those of them that nobody ends), `_urgent` (values that somebody waits
    for, with parts to ask for), `_begun` (values asked for and not taken) with `_held` bytes and
    `_peak`, `_workers` (each with when something came, or it asked, last), `_last` (when anything
    came) and `_pace`.
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
        self._window = window_bytes
        self._part_bytes = engine.part_bytes or PART_BYTES
        self._most = (1 + HANGING) * connections
        self._pool = ReaderPool(connections, "omlx-cache-remote-read", most=self._most)
        self._lock = threading.Lock()
        self._open: list[Expected] = []
        self._staying: list[Expected] = []
        self._urgent: deque[Coming] = deque()
        self._begun: set[Coming] = set()
        self._held = self._peak = 0
        self._workers: dict[object, float] = {}
        self._last = 0.0
        self._slabs = Slabs()
        first = connections if engine.part_bytes is None else FIRST_LANES
        self._pace = Pace(Lanes(connections, first))
        self._closed = False

    @property
    def held_bytes(self) -> int:
        return self._held + self._slabs.free_bytes

    @property
    def peak_bytes(self) -> int:
        return self._peak

    @uninterrupted
    def expect(self, wanted: Sequence[Wanted]) -> Expected:
        """Begin to read values in order; returns at once."""
        expected = Expected(self.end)
        with self._lock:
            if self._closed or not wanted:
                expected.closed = True
                return expected
            there = {page for one in self._staying for page in one.coming}
            for one in wanted:
                if one.page not in expected.coming and one.page not in there:
                    expected.queue.append(self._add(expected, one))
            self._open.append(expected)
        self._wake()
        return expected

    def is_expected(self, page: PageId) -> bool:
        """Return whether a page is on its way, or has come, and nobody has taken it."""
        with self._lock:
            return self._find(page) is not None

    @uninterrupted
    def take(self, wanted: Wanted, *, again: bool = False) -> Value:
        """Return a value's bytes in parts; waits for as long as something comes, but no longer than
        the time-out without. Raises PageUnreadable, its text begins with a word of `reasons`.

        With `again` it stays for whoever takes it next, until what is expected by then ends.
        """
        with self._lock:
            if self._closed:
                raise PageNotSent(reasons.UNREACHABLE, "the remote tier is closed")
            coming = self._find(wanted.page)
            if coming is None:
                expected = Expected(self.end)
                coming = self._add(expected, wanted)
                if again:
                    self._open.insert(0, expected)
                    self._staying.append(expected)
            coming.taken = True
            if coming.todo:
                self._urgent.append(coming)
        self._wake()
        value = self._wait(coming, again)
        if again:
            self._let_few_stay(STAYING)
        return value

    @uninterrupted
    def end(self, expected: Expected) -> None:
        """Ask for no more of what nobody waits for."""
        with self._lock:
            if expected.closed:
                return
            expected.closed = True
            stays = expected in self._staying
            if stays:
                self._staying.remove(expected)
            expected.queue.clear()
            if expected in self._open:
                self._open.remove(expected)
            for coming in list(expected.coming.values()):
                if not coming.taken:
                    self._settle(coming, PageNotSent(reasons.LOST, "nobody wanted it any more"))
                    self._release(coming)
        if not stays:
            self._let_few_stay(0)
        self._wake()

    def _let_few_stay(self, most: int) -> None:
        with self._lock:
            gone = self._staying[: max(0, len(self._staying) - most)]
        for expected in gone:
            self.end(expected)

    @uninterrupted
    def close(self, timeout: float) -> bool:
        """Read nothing more; False when a read hangs for longer."""
        with self._lock:
            self._closed = True
            expected = {*self._open, *(coming.expected for coming in (*self._begun, *self._urgent))}
        for one in expected:
            self._fail(one, reasons.UNREACHABLE, "the remote tier is closed")
            self.end(one)
        return self._pool.stop(timeout)

    def check_integrity(self) -> None:
        """Assert that the window's books agree with the values in it."""
        with self._lock:
            assert self._held == sum(coming.held for coming in self._begun)
            assert all(coming.held for coming in self._begun)
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
                self._settle(coming, PageNotSent(reasons.LOST, "nobody wanted it any more"))
                if again and coming.future.exception(0) is None:
                    coming.taken = False
                else:
                    self._pace.took(coming.held, time.monotonic(), bool(self._workers))
                    self._release(coming)
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
            expected.queue.clear()
            for coming in expected.coming.values():
                self._settle(coming, PageNotSent(reason, text))
                self._give_back(coming)

    # Under `_lock`.

    def _add(self, expected: Expected, wanted: Wanted) -> Coming:
        parts = parts_of(wanted.name, wanted.nbytes, self._part_bytes)
        coming = expected.coming[wanted.page] = Coming(wanted, expected, parts)
        return coming

    def _find(self, page: PageId) -> Coming | None:
        for expected in self._open:
            coming = expected.coming.get(page)
            if coming is not None and not coming.taken:
                return coming
        return None

    def _settle(self, coming: Coming, error: PageUnreadable | None) -> None:
        if coming.future.done():
            return
        coming.todo.clear()
        if error is not None:
            coming.future.set_exception(error)
        else:
            coming.future.set_result([one for one in coming.slots if one is not None])

    def _release(self, coming: Coming) -> None:
        self._give_back(coming)
        coming.slots = []
        if coming.expected.coming.get(coming.wanted.page) is coming:
            del coming.expected.coming[coming.wanted.page]

    def _give_back(self, coming: Coming) -> None:
        if coming.held:
            self._held -= coming.held
            self._begun.remove(coming)
            coming.held = 0
            if not self._begun:
                self._slabs.clear()

    def _begin(self, coming: Coming) -> bool:
        """Make room for a value; False when the window is full."""
        more = coming.nbytes - coming.held
        if not coming.held and not coming.taken and not self._has_room(more):
            return False
        self._begun.add(coming)
        self._slabs.keep()
        self._held += more
        coming.held += more
        self._peak = max(self._peak, self._held)
        return True

    def _has_room(self, nbytes: int) -> bool:
        """Return whether a value may be there too: while one lot is taken the next one comes. What
        stays takes no part in that."""
        stays = [one.held for expected in self._staying for one in expected.coming.values()]
        if len(self._begun) - sum(held > 0 for held in stays) < WINDOW_PAGES:
            return True
        room = min(self._window, 2 * self._pace.width * TOGETHER_BYTES)
        return self._held - sum(stays) + nbytes <= room

    def _hanging(self, now: float) -> int:
        return sum(since < now - self._stalled_seconds for since in self._workers.values())

    def _next(self) -> list[Unit]:
        """Return what one connection asks for next, [] when there is nothing, or no room: what
        somebody waits for, and what is expected behind it; then what was expected first."""
        while self._urgent and not self._urgent[0].todo:
            self._urgent.popleft()
        if self._urgent:
            return self._batch(self._urgent[0].expected, self._urgent[0])
        for expected in self._open:
            if batch := self._batch(expected, None):
                return batch
        return []

    def _batch(self, expected: Expected, first: Coming | None) -> list[Unit]:
        batch: list[Unit] = []
        nbytes = 0
        while len(batch) < TOGETHER:
            while expected.queue and not expected.queue[0].todo:
                expected.queue.popleft()
            if first is not None and first.todo:
                coming = first
            elif expected.queue:
                coming = expected.queue[0]
            else:
                break
            unit = Unit(coming, coming.todo[0])
            if batch and nbytes + unit.cost > TOGETHER_BYTES:
                break
            if not self._begin(coming):
                break
            coming.todo.popleft()
            batch.append(unit)
            nbytes += unit.cost
        return batch

    # On the threads of the pool.

    @uninterrupted
    def _wake(self) -> None:
        """Have as many workers as there is to do, and connections."""
        with self._lock:
            now = time.monotonic()
            hanging = self._hanging(now)
            waiting = len(self._urgent) + sum(len(expected.queue) for expected in self._open)
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
            batch = [] if self._closed or spare else self._next()
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
            found = self._read([unit.part for unit in batch], Sink(self._slabs.memory, came))
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
                self._put(unit, part)
        self._wake()

    def _read(self, parts: Sequence[Part], sink: Sink) -> list[Buffer | None]:
        try:
            return self._engine.read(parts, sink)
        except RemoteError as error:
            if error.reason != "lost" or self._closed:
                raise
            # A connection that was idle for long may have ended: another one is tried once.
            return self._engine.read(parts, sink)

    def _put(self, unit: Unit, part: Buffer | None) -> None:
        """Take a part that came, or did not. Under `_lock`."""
        coming = unit.coming
        if coming.future.done():
            return
        if part is None:
            # An engine's own parts are values, of which the store evicts each by itself.
            torn = unit.at > 0 and self._engine.part_bytes is not None
            self._settle(coming, PageNotSent(reasons.LOST, TORN if torn else "it was evicted"))
            return
        coming.slots[unit.at] = part
        coming.left -= 1
        if not coming.wanted.nbytes and unit.at == 0:
            self._ask_for_the_rest(coming, part)
        if not coming.left:
            self._settle(coming, None)

    def _ask_for_the_rest(self, coming: Coming, first: Buffer) -> None:
        """Ask for what follows the first part of a value whose length was not known."""
        if memoryview(first).nbytes < self._part_bytes:
            return
        nbytes = length_said_by(first)
        coming.add(parts_of(coming.wanted.name, nbytes, self._part_bytes, 1) if nbytes else [])
        if coming.taken and coming.todo:
            self._urgent.append(coming)
        elif coming.todo:
            coming.expected.queue.appendleft(coming)
