"""How quickly a remote store answers, gives and takes, and what that is good for. Measured with
values that are deleted afterwards."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from secrets import token_hex
from typing import Final, NamedTuple

from omlx_cache.settings.sizes import duration, format_size
from omlx_cache_daemon.render import facts, table, text
from omlx_cache_storage.remote.engine import Part, RemoteEngine, RemoteError, RemoteOptions
from omlx_cache_storage.remote.envelope import WIRE_BYTES

PINGS = 20
LOOKUP_PAGES = 512
"""Pages of a prompt of 131,072 tokens: those of one layer group."""
MOST_PHASES = 3
SMALLEST, LARGEST = 64 << 10, 4 << 20
VALUES = 8
PREFIX_TOKENS: Final = 8192
"""The prefix that a lookup's time is spread over."""
TOKEN_BYTES: Final = {
    "Llama 3.2 1B": 32 << 10,
    "Qwen3 30B-A3B": 96 << 10,
    "Llama 3.1 8B": 128 << 10,
    "Qwen3 8B": 144 << 10,
    "Llama 3.3 70B": 320 << 10,
}
"""Keys and values of a token in 16 bits, as `omlx-cache size` has them."""


class Worth(NamedTuple):
    """For one model: what a token takes to read, the lookup included; who computes fewer tokens a
    second gains."""

    model: str
    token_bytes: int
    token_seconds: float
    tokens_per_second: float


@dataclass(slots=True)
class Link:
    """What was measured of the way to a store; None is what could not be. Rates are bytes a second,
    `phase_seconds` what one question about `phase_pages` pages takes. `server` is what it says that
    it is, "" where it does not; `tokens_per_second` what running stores know of theirs, by model.
    """

    where: str
    tokens_per_second: dict[str, float]
    server: str = ""
    reached: bool = False
    certificate_days: float | None = None
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
        return None if self.phase_seconds is None else MOST_PHASES * self.phase_seconds

    @property
    def worth(self) -> list[Worth]:
        """Nothing where it could not be measured."""
        rate, lookup = max(self.read_rate or 0, self.parallel_rate or 0), self.lookup_seconds
        if not rate or lookup is None:
            return []
        return [worth(model, nbytes, rate, lookup) for model, nbytes in TOKEN_BYTES.items()]

    def to_dict(self) -> dict[str, object]:
        rows = [one._asdict() for one in self.worth]
        return {**asdict(self), "lookup_seconds": self.lookup_seconds, "worth": rows}

    def report(self) -> str:
        server = f" ({text(self.server)})" if self.server else ""
        days = self.certificate_days
        good = "" if days is None else f", its certificate is good for {duration(days * 86_400)}"
        answers = "answers" if self.reached else "no answer"
        rows = [
            ("round trip", self.median_trip_seconds, "s"),
            ("lookup, at most", self.lookup_seconds, "s"),
            ("writing", self.write_rate, "B/s"),
            ("reading", self.read_rate, "B/s"),
            (f"reading over {self.connections}", self.parallel_rate, "B/s"),
        ]
        known = [(name, _shown(value, unit)) for name, value, unit in rows if value is not None]
        shown = f"{text(self.where)}{server}: {answers}{good}\n" + facts(known, "  ")
        if not self.worth:
            return shown
        models = [
            (
                one.model,
                format_size(one.token_bytes),
                f"{1e6 * one.token_seconds:,.1f} us",
                f"{one.tokens_per_second:,.0f} tokens/s",
            )
            for one in self.worth
        ]
        shown += f"\na prefix of {PREFIX_TOKENS:,} tokens, lookup included\n"
        shown += table(("MODEL", "A TOKEN HAS", "READ IN", "WORTH IT BELOW"), models)
        return shown + "".join(
            f"{text(model)} computes {rate:,.0f} tokens/s here\n"
            for model, rate in sorted(self.tokens_per_second.items())
        )


def worth(model: str, token_bytes: int, rate: float, lookup_seconds: float) -> Worth:
    seconds = token_bytes / rate + lookup_seconds / PREFIX_TOKENS
    return Worth(model, token_bytes, seconds, 1 / seconds)


def measure_trips(engine: RemoteEngine, link: Link) -> None:
    """Raises RemoteError."""
    link.connect_seconds = _taken(engine.ping)
    trips = [_taken(engine.ping) for _ in range(PINGS)]
    link.shortest_trip_seconds, link.median_trip_seconds = min(trips), statistics.median(trips)


def measure_lookups(engine: RemoteEngine, options: RemoteOptions, link: Link) -> None:
    """Ask for pages that are not there, as a lookup does; raises RemoteError."""
    link.phase_pages = min(LOOKUP_PAGES, engine.asks_together)
    place = f"{options.prefix}/doctor-{token_hex(8)}"
    names = [f"{place}/{number:064x}-paged" for number in range(link.phase_pages)]
    phases = [_taken(partial(engine.look, names, WIRE_BYTES)) for _ in range(5)]
    link.phase_seconds = statistics.median(phases)


def measure_rates(engine: RemoteEngine, options: RemoteOptions, seconds: float, link: Link) -> None:
    """Write values, read them one after the other and over all connections, and delete them; each
    for about so many seconds. Raises RemoteError; what was measured until then stands."""
    place = f"{options.prefix}/doctor-{token_hex(8)}"
    names = [f"{place}/{number}" for number in range(VALUES)]
    parts: list[Part] = []
    try:
        link.connections = options.connections
        link.value_bytes = _fitting(engine, options, seconds, names[0])
        content = os.urandom(link.value_bytes)
        began = time.monotonic()
        for name in names:
            engine.write(name, [[content]], replace=True)
            parts.append(Part(name, 0, 0, len(content)))
            if time.monotonic() - began > seconds:
                break
        link.write_rate = len(parts) * len(content) / (time.monotonic() - began)
        link.read_rate = _read(engine, parts, content, seconds, 1, link)
        link.parallel_rate = _read(engine, parts, content, seconds, link.connections, link)
    finally:
        try:
            engine.delete(names)
        except RemoteError:
            link.left_values = len(parts)


def _fitting(engine: RemoteEngine, options: RemoteOptions, seconds: float, name: str) -> int:
    """Return how long a value may be that is written and read well within the time for it."""
    write = partial(engine.write, name, [[os.urandom(SMALLEST)]], replace=True)
    read = partial(engine.read, [Part(name, 0, 0, SMALLEST)])
    # The first one may have to connect.
    taken = max(min(_taken(call) for _ in range(2)) for call in (write, read))
    # All connections share the way: a value takes as many times as long there.
    allowed = min(seconds, options.read_seconds / 2) / max(1, options.connections)
    return max(SMALLEST, min(LARGEST, int(SMALLEST * allowed / max(taken, 1e-6))))


def _read(
    engine: RemoteEngine,
    parts: Sequence[Part],
    content: bytes,
    seconds: float,
    connections: int,
    link: Link,
) -> float:
    """Return the rate of so many readers at once, and count the values that come otherwise than
    they were written; raises the RemoteError of one of them."""

    def read(first: int, ends: float) -> list[bool]:
        right: list[bool] = []
        while not right or time.monotonic() < ends:
            (value,) = engine.read([parts[(first + len(right)) % len(parts)]])
            right.append(value is not None and bytes(value) == content)
        return right

    with ThreadPoolExecutor(connections) as pool:
        # Each has its connection before it counts.
        list(pool.map(read, range(connections), [0.0] * connections))
        began = time.monotonic()
        came = list(pool.map(read, range(connections), [began + seconds] * connections))
        took = time.monotonic() - began
    right = [one for reader in came for one in reader]
    link.damaged_values += right.count(False)
    return right.count(True) * len(content) / took


def _taken(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _shown(value: float, unit: str) -> str:
    if unit == "s":
        return f"{1000 * value:.3g} ms"
    return f"{value / 1e9:.2f} GB/s" if value >= 1e8 else f"{value / 1e6:.2f} MB/s"
