"""Pages on their way from a remote store: in the order in which they are wanted, over several
connections, pipelined, and no more of them at a time than a window holds."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx_cache_storage.errors import PageError, PageUnreadable
from omlx_cache_storage.interrupts import wait_in_turns
from omlx_cache_storage.page import Buffer, PageId
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.engine import Part, RemoteEngine, RemoteError
from omlx_cache_storage.remote.envelope import WIRE_BYTES

WINDOW_BYTES = 64 << 20
"""Bytes that were asked for and not taken yet; a reader's own page comes whatever they are."""
TOGETHER_BYTES = 4 << 20
TOGETHER = 64
"""What one connection asks for in one pipeline."""
PART_BYTES = 8 << 20
"""Stretches of a large value that several connections bring at once."""

Value = list[Buffer]


class Wanted(NamedTuple):
    """A value to be read: its page, its name, and its length, 0 when that is not known."""

    page: PageId
    name: str
    nbytes: int


@dataclass(eq=False)
class _Coming:
    """A value on its way; `left` counts the parts that have not come."""

    wanted: Wanted
    batch: "Expected"
    parts: list[Part]
    slots: list[Buffer | None]
    left: int
    future: "Future[Value]" = field(default_factory=Future)
    begun: bool = False
    taken: bool = False


class _Unit(NamedTuple):
    """A part of a value."""

    coming: _Coming
    at: int


class Expected:
    """Pages that somebody is about to read; `close` ends that, any number of times."""

    def __init__(self, reads: "RemoteReads") -> None:
        self._reads = reads
        self.coming: dict[PageId, _Coming] = {}
        self.units: deque[_Unit] = deque()
        self.progress = time.monotonic()
        self.trouble = ""
        self.closed = False

    def __enter__(self) -> "Expected":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no more of what nobody has taken, and give its memory back. Waits for nothing."""
        self._reads.end(self)


class RemoteReads:
    """Reads values on `connections` threads. Any thread may call; `take` alone waits.

    Mutable, guarded by `_lock`, which is held over no I/O: `_open` (in order), what they hold,
    `_held` (bytes asked for and not taken), `_peak` and `_workers`.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        connections: int,
        stalled_seconds: float,
        *,
        failed: Callable[[RemoteError], None],
        stalled: Callable[[], None],
        came: Callable[[int, float], None],
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._engine = engine
        self._connections = connections
        self._stalled_seconds = stalled_seconds
        self._failed = failed
        self._stalled = stalled
        self._came = came
        self._window = window_bytes
        self._part_bytes = engine.part_bytes or PART_BYTES
        self._pool = ReaderPool(connections, "omlx-cache-remote-read", most=4 * connections)
        self._lock = threading.Lock()
        self._open: list[Expected] = []
        self._held = self._peak = self._workers = 0
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Bytes asked for and not taken."""
        return self._held

    @property
    def peak_bytes(self) -> int:
        return self._peak

    def expect(self, wanted: Sequence[Wanted]) -> Expected:
        """Begin to read values in order; returns at once."""
        expected = Expected(self)
        with self._lock:
            if self._closed:
                expected.closed = True
                return expected
            for one in wanted:
                if one.page not in expected.coming:
                    self._add(expected, one)
            self._open.append(expected)
        self._wake()
        return expected

    def take(self, wanted: Wanted) -> Value:
        """Return a value's bytes in parts; waits for as long as something comes, but no longer than
        the time-out without. Raises PageUnreadable."""
        with self._lock:
            coming = next(
                (
                    one
                    for expected in self._open
                    if (one := expected.coming.get(wanted.page)) is not None and not one.taken
                ),
                None,
            )
            if coming is not None:
                coming.taken = True
                self._hurry(coming)
        if coming is not None:
            self._wake()
            return self._wait(coming)
        with self.expect([wanted]) as expected:
            coming = expected.coming.get(wanted.page)
            if coming is None:
                raise PageUnreadable(f"{reasons.UNREACHABLE}: the remote tier is closed")
            coming.taken = True
            return self._wait(coming)

    def _wait(self, coming: _Coming) -> Value:
        expected = coming.batch
        try:
            while not coming.future.done():
                left = expected.progress + self._stalled_seconds - time.monotonic()
                if left <= 0:
                    self._give_up(expected)
                    break
                wait_in_turns(_waiter(coming.future), left)
            return coming.future.result(0)
        except TimeoutError:
            raise PageUnreadable(f"{reasons.TIMEOUT}: nothing came any more") from None
        finally:
            self._done_with(coming)

    def _give_up(self, expected: Expected) -> None:
        """Let a restore whose pages stand still have none of those that are left."""
        self._fail(expected, reasons.TIMEOUT, "nothing came any more")
        self._stalled()

    def end(self, expected: Expected) -> None:
        with self._lock:
            if expected.closed:
                return
            expected.closed = True
            expected.units.clear()
            if expected in self._open:
                self._open.remove(expected)
            left = [one for one in expected.coming.values() if not one.taken]
            for one in left:
                one.taken = True
                self._give_back(one)
            expected.coming.clear()
        for one in left:
            one.future.cancel()

    def close(self, timeout: float) -> bool:
        """Read nothing more; False when a read hangs for longer."""
        with self._lock:
            self._closed = True
            expected = list(self._open)
        for one in expected:
            self._fail(one, reasons.UNREACHABLE, "the remote tier is closed")
            self.end(one)
        return self._pool.stop(timeout)

    # Under `_lock`.

    def _add(self, expected: Expected, wanted: Wanted) -> None:
        parts = self._parts(wanted.name, 0, wanted.nbytes or self._part_bytes)
        coming = _Coming(wanted, expected, parts, [None] * len(parts), len(parts))
        expected.coming[wanted.page] = coming
        expected.units.extend(_Unit(coming, at) for at in range(len(parts)))

    def _parts(self, name: str, first: int, nbytes: int) -> list[Part]:
        size = self._part_bytes
        starts = range(first * size, max(nbytes, first * size + 1), size)
        return [Part(name, at // size, at, min(size, nbytes - at)) for at in starts]

    def _hurry(self, coming: _Coming) -> None:
        """Bring what somebody waits for before all else."""
        expected = coming.batch
        if not coming.begun and expected.units and expected.units[0].coming is not coming:
            mine = [unit for unit in expected.units if unit.coming is coming]
            rest = [unit for unit in expected.units if unit.coming is not coming]
            expected.units = deque([*mine, *rest])

    def _give_back(self, coming: _Coming) -> None:
        if coming.begun:
            self._held -= _length(coming)
            coming.begun = False

    def _next(self) -> list[_Unit]:
        """Return what one connection asks for next, [] when there is nothing, or no room."""
        for expected in self._open:
            batch: list[_Unit] = []
            nbytes = 0
            while expected.units and len(batch) < TOGETHER:
                unit = expected.units[0]
                coming, part = unit.coming, unit.coming.parts[unit.at]
                if batch and nbytes + part.nbytes > TOGETHER_BYTES:
                    break
                if not coming.begun:
                    full = self._held + _length(coming) > self._window
                    if full and self._held and not coming.taken:
                        break
                    coming.begun = True
                    self._held += _length(coming)
                    self._peak = max(self._peak, self._held)
                expected.units.popleft()
                batch.append(unit)
                nbytes += part.nbytes
            if batch:
                return batch
        return []

    # On the threads of the pool.

    def _wake(self) -> None:
        with self._lock:
            waiting = sum(len(expected.units) for expected in self._open)
            wanted = max(0, min(self._connections - self._workers, waiting))
            self._workers += wanted
        for begun in range(wanted):
            try:
                self._pool.submit(self._work)
            except RuntimeError:
                with self._lock:
                    self._workers -= wanted - begun
                return

    def _work(self) -> None:
        while True:
            with self._lock:
                batch = [] if self._closed else self._next()
                if not batch:
                    self._workers -= 1
                    return
            try:
                self._bring(batch)
            except BaseException:
                with self._lock:
                    self._workers -= 1
                raise

    def _bring(self, batch: Sequence[_Unit]) -> None:
        expected = batch[0].coming.batch
        parts = [unit.coming.parts[unit.at] for unit in batch]
        began = time.perf_counter()
        try:
            found = self._read(parts)
        except RemoteError as error:
            self._failed(error)
            self._fail(expected, reasons.reason_of(error.reason), str(error))
            return
        except Exception as error:
            self._fail(expected, reasons.FAILED, f"{type(error).__name__}: {error}")
            return
        nbytes = sum(memoryview(one).nbytes for one in found if one is not None)
        self._came(nbytes, time.perf_counter() - began)
        expected.progress = time.monotonic()
        for unit, one in zip(batch, found, strict=True):
            self._put(unit, one)

    def _read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        try:
            return self._engine.read(parts)
        except RemoteError as error:
            if error.reason != "lost":
                raise
            # A connection that was idle for long may have ended: another one is tried once.
            return self._engine.read(parts)

    def _put(self, unit: _Unit, part: Buffer | None) -> None:
        coming = unit.coming
        if part is None:
            error = PageUnreadable(f"{reasons.LOST}: it was there when it was asked for")
            self._settle(coming, error)
            return
        more = 0
        with self._lock:
            coming.slots[unit.at] = part
            coming.left -= 1
            if not coming.wanted.nbytes and unit.at == 0 and len(coming.parts) == 1:
                more = self._rest_of(coming, part)
            done = not coming.left
        if more:
            self._wake()
        elif done:
            self._settle(coming, None)

    def _rest_of(self, coming: _Coming, first: Buffer) -> int:
        """Ask for the rest of a value whose length was not known; return how many parts it has."""
        raw = bytes(memoryview(first)[16:24])
        nbytes = WIRE_BYTES + int.from_bytes(raw, "little")
        expected = coming.batch
        if len(memoryview(first)) < self._part_bytes or expected.closed:
            return 0
        if nbytes > MOST_BYTES:
            return 0
        parts = self._parts(coming.wanted.name, 1, nbytes)
        at = len(coming.parts)
        coming.parts += parts
        coming.slots += [None] * len(parts)
        coming.left += len(parts)
        self._held += sum(part.nbytes for part in parts) if coming.begun else 0
        expected.units.extendleft(_Unit(coming, at + n) for n in reversed(range(len(parts))))
        return len(parts)

    def _fail(self, expected: Expected, reason: str, text: str) -> None:
        with self._lock:
            expected.trouble = reason
            expected.units.clear()
            left = [one for one in expected.coming.values() if not one.future.done()]
        for one in left:
            self._settle(one, PageUnreadable(f"{reason}: {text}"))

    def _settle(self, coming: _Coming, error: PageError | None) -> None:
        # Two connections may have news of one value at once.
        with self._lock:
            if coming.future.done():
                return
            coming.future.set_running_or_notify_cancel()
            if error is not None:
                coming.future.set_exception(error)
            else:
                coming.future.set_result([one for one in coming.slots if one is not None])

    def _done_with(self, coming: _Coming) -> None:
        with self._lock:
            self._give_back(coming)
            coming.batch.coming.pop(coming.wanted.page, None)
            coming.slots = []
        self._wake()


MOST_BYTES = 1 << 32
"""The longest value that is believed on the word of bytes that were not checked yet."""


def _length(coming: _Coming) -> int:
    return sum(part.nbytes for part in coming.parts)


def _waiter(future: "Future[Value]") -> Callable[[float | None], bool]:
    def wait(seconds: float | None) -> bool:
        try:
            future.exception(seconds)
        except TimeoutError:
            return False
        return True

    return wait
