"""How quickly a remote store answers, gives and takes: measured with values of its own, which are
deleted afterwards."""

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex

from omlx_cache_storage.remote.engine import (
    Part,
    RemoteEngine,
    RemoteError,
    RemoteOptions,
    known_error,
)
from omlx_cache_storage.remote.envelope import WIRE_BYTES

PINGS = 20
LOOKUP_PAGES = 512
"""Pages of a prompt of 131,072 tokens: those of one layer group."""
MOST_PHASES = 3
SMALLEST, LARGEST = 64 << 10, 4 << 20
VALUES = 8


@dataclass(slots=True)
class Measured:
    """What was measured; None is what could not be. Rates are bytes a second, `phase_seconds` what
    one question about `phase_pages` pages takes."""

    connect_seconds: float | None = None
    shortest_trip_seconds: float | None = None
    median_trip_seconds: float | None = None
    phase_pages: int = 0
    phase_seconds: float | None = None
    value_bytes: int = 0
    write_rate: float | None = None
    read_rate: float | None = None
    connections: int = 1
    parallel_rate: float | None = None
    damaged_values: int = 0
    left_values: int = 0

    @property
    def lookup_seconds(self) -> float | None:
        """What a look-up takes at most."""
        return None if self.phase_seconds is None else MOST_PHASES * self.phase_seconds

    @property
    def best_rate(self) -> float | None:
        return max((one for one in (self.read_rate, self.parallel_rate) if one), default=None)


def measure_trips(engine: RemoteEngine, measured: Measured) -> None:
    """Ask for next to nothing, again and again; raises RemoteError."""
    measured.connect_seconds = _taken(engine.ping)
    trips = [_taken(engine.ping) for _ in range(PINGS)]
    measured.shortest_trip_seconds = min(trips)
    measured.median_trip_seconds = statistics.median(trips)


def measure_lookups(engine: RemoteEngine, options: RemoteOptions, measured: Measured) -> None:
    """Ask for pages that are not there, as a look-up does; raises RemoteError."""
    pages = min(LOOKUP_PAGES, engine.asks_together)
    place = f"{options.prefix}/doctor-{token_hex(8)}"
    names = [f"{place}/{number:064x}-paged" for number in range(pages)]
    measured.phase_pages = pages
    measured.phase_seconds = statistics.median(
        _taken(lambda: engine.look(names, WIRE_BYTES)) for _ in range(5)
    )


def measure_rates(
    engine: RemoteEngine, options: RemoteOptions, seconds: float, measured: Measured
) -> None:
    """Write values, read them one after the other and over all connections, and delete them; each
    for about so many seconds. Raises RemoteError; what was measured until then stands."""
    place = f"{options.prefix}/doctor-{token_hex(8)}"
    written = _Written(engine)
    with written.deleting(measured):
        nbytes = _fitting(engine, options, seconds, f"{place}/first", written)
        content = os.urandom(nbytes)
        measured.value_bytes, measured.connections = nbytes, options.connections
        names = [f"{place}/{number}" for number in range(VALUES)]
        began, taken = time.monotonic(), 0
        for name in names:
            written.write(name, content)
            taken += 1
            if time.monotonic() - began > seconds:
                break
        measured.write_rate = taken * nbytes / (time.monotonic() - began)
        parts = [Part(name, 0, 0, nbytes) for name in names[:taken]]
        measured.read_rate = _read(engine, parts, content, seconds, 1, measured)
        measured.parallel_rate = _read(
            engine, parts, content, seconds, options.connections, measured
        )


def _fitting(
    engine: RemoteEngine, options: RemoteOptions, seconds: float, name: str, written: "_Written"
) -> int:
    """Return how long a value may be that is written and read well within the time for it."""
    content = os.urandom(SMALLEST)
    # The first one may have to connect.
    taken = max(
        min(_taken(lambda: written.write(name, content)) for _ in range(2)),
        min(_taken(lambda: engine.read([Part(name, 0, 0, SMALLEST)])) for _ in range(2)),
    )
    # All connections share the way: a value takes as many times as long there.
    allowed = min(seconds, options.read_seconds / 2) / max(1, options.connections)
    nbytes = int(SMALLEST * allowed / max(taken, 1e-6))
    return max(SMALLEST, min(LARGEST, nbytes))


def _read(
    engine: RemoteEngine,
    parts: list[Part],
    content: bytes,
    seconds: float,
    connections: int,
    measured: Measured,
) -> float:
    """Return the rate of so many readers at once, each of which has its connection by then, and has
    compared what came on it; raises the first RemoteError of one of them."""
    lock = threading.Lock()
    failed: list[RemoteError] = []
    nbytes = 0
    began = 0.0

    def begin() -> None:
        nonlocal began
        began = time.monotonic()

    ready = threading.Barrier(connections, begin)

    def read(first: int) -> None:
        nonlocal nbytes
        try:
            (value,) = engine.read([parts[first % len(parts)]])
            is_right = value is not None and bytes(value) == content
            with lock:
                measured.damaged_values += not is_right
            ready.wait()
            number = first
            while True:
                number += 1
                (value,) = engine.read([parts[number % len(parts)]])
                came = 0 if value is None else memoryview(value).nbytes
                with lock:
                    nbytes += came
                    measured.damaged_values += came != len(content)
                if failed or time.monotonic() - began > seconds:
                    return
        except threading.BrokenBarrierError:
            return
        except Exception as error:
            # Whatever it is: the others wait for this one.
            failed.append(known_error(error))
            ready.abort()

    readers = [threading.Thread(target=read, args=(n,)) for n in range(1, connections)]
    for reader in readers:
        reader.start()
    read(0)
    for reader in readers:
        reader.join()
    if failed:
        raise failed[0]
    return nbytes / (time.monotonic() - began)


class _Written:
    """The values that were written (True), or may have been."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._names: dict[str, bool] = {}

    def write(self, name: str, content: bytes) -> None:
        self._names.setdefault(name, False)
        self._engine.write(name, [[content]], replace=True)
        self._names[name] = True

    @contextmanager
    def deleting(self, measured: Measured) -> Iterator[None]:
        """Delete them in the end, and note how many cannot be."""
        try:
            yield
        finally:
            try:
                self._engine.delete(list(self._names))
            except RemoteError:
                measured.left_values = sum(self._names.values())


def _taken(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
