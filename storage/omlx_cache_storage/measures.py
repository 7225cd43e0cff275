"""What a store measures and counts: durations, in fixed buckets as Prometheus has them; the wall
time that computing and restoring took, and that restoring has saved; and sums."""

import threading
import time
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from math import inf
from typing import Any, Literal, NamedTuple, get_args

from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.stats import Histogram, RequestStats, SnapshotStats

Measure = Literal[
    "restore_seconds",
    "commit_seconds",
    "held_seconds",
    "prefill_seconds",
    "page_write_seconds",
    "page_read_seconds",
    "remote_lookup_seconds",
    "remote_page_read_seconds",
    "asked_tokens",
    "restored_tokens",
]
"""Of each request: its restore, its commit, its wait for another request, the computing of its
prompt, and the tokens that it asked for and got. Of each page: its write and its read. Of a remote
store: each answered lookup, and each page from the request for it until it was in its place."""
MEASURES: tuple[Measure, ...] = get_args(Measure)

_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
_TOKENS = tuple(float(4**power) for power in range(3, 11))
BOUNDS: Mapping[Measure, Sequence[float]] = {
    name: _TOKENS if name.endswith("_tokens") else _SECONDS for name in MEASURES
}


class Histograms:
    """Counts durations and sizes. Any thread may call; `_lock` guards `_counts` and `_sums`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in BOUNDS.items()}
        self._sums = dict.fromkeys(MEASURES, 0.0)

    def observe(self, measure: Measure, value: float) -> None:
        at = bisect_left(BOUNDS[measure], value)
        with self._lock:
            self._counts[measure][at] += 1
            self._sums[measure] += value

    def observed(self) -> dict[str, Histogram]:
        with self._lock:
            running = {name: tuple(accumulate(row)) for name, row in self._counts.items()}
            sums = dict(self._sums)
        return {
            name: Histogram(tuple(zip(BOUNDS[name], counts, strict=False)), sums[name], counts[-1])
            for name, counts in running.items()
        }


MOST_SPANS = 64


class Intervals:
    """The union of the intervals that were added, in any order, as seconds. What lies before a
    floor, or before the latest 64 stretches, counts no more, so that `seconds` is never more than
    the union. Its owner guards it."""

    def __init__(self, floor: float = -inf) -> None:
        self.seconds = 0.0
        self._spans: list[tuple[float, float]] = []
        self._floor = floor

    def add(self, begin: float, end: float) -> float:
        begin = max(begin, self._floor)
        if not begin < end:
            return 0.0
        first, last, covered, apart = begin, end, 0.0, list[tuple[float, float]]()
        for span in self._spans:
            if span[0] <= end and begin <= span[1]:
                first, last = min(first, span[0]), max(last, span[1])
                covered += span[1] - span[0]
            else:
                apart.append(span)
        self._spans = sorted([*apart, (first, last)])
        if len(self._spans) > MOST_SPANS:
            self._floor = self._spans.pop(0)[1]
        new = last - first - covered
        self.seconds += new
        return new


RATED_TOKENS = 128
"""Tokens of the smallest chunk that tells a rate: in a smaller one other costs pass for
computing."""
RECENT_TOKENS = 65_536
"""After so many tokens earlier measurements count half: the machine may have become faster."""
MODELS = 64


class WorkTotals(NamedTuple):
    """Named as in `RequestStats`; `saved_seconds` is an estimate, as there. Rates are by the
    models' labels."""

    prefill_seconds: float
    restore_seconds: float
    saved_seconds: float
    prefill_tokens_per_second: Mapping[str, float]


@dataclass(slots=True)
class _Model:
    """One model's work. `tokens` took `seconds` lately. `restoring` is when requests restored, or
    waited for others that compute. `unpriced_tokens` were restored at a cost of `unpriced_seconds`
    before any rate was known; other restored tokens are in `saved`, priced once."""

    label: str
    computing: Intervals
    restoring: Intervals
    tokens: float = 0.0
    seconds: float = 0.0
    rate: float | None = None
    saved: float = 0.0
    unpriced_tokens: int = 0
    unpriced_seconds: float = 0.0

    def price(self, tokens: int = 0, seconds: float = 0.0) -> None:
        """Count what restoring `tokens` has saved, at a cost of `seconds`, and with it what waits
        for the first rate. A later rate changes nothing of it."""
        self.unpriced_tokens += tokens
        self.unpriced_seconds += seconds
        if self.rate is not None:
            self.saved += self.unpriced_tokens / self.rate - self.unpriced_seconds
            self.unpriced_tokens, self.unpriced_seconds = 0, 0.0


class WorkMeter:
    """Adds up work that may go on in parallel, by wall time. Any thread may call.

    A model's rate assumes that all its tokens cost the same, but attention makes later ones cost
    more. `_lock` guards `_models` (64, the latest used last) and the sums.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._models: OrderedDict[str, _Model] = OrderedDict()
        self._computing = Intervals(self._started)
        self._restoring = Intervals(self._started)
        self._saved_by_others = 0.0

    def request(self, model: str, label: str) -> "RequestWork":
        with self._lock:
            new = _Model(label, Intervals(self._started), Intervals(self._started))
            known = self._models.setdefault(model, new)
            self._models.move_to_end(model)
            if len(self._models) > MODELS:
                self._saved_by_others += self._models.popitem(last=False)[1].saved
        return RequestWork(self, known)

    def rate(self, model: str) -> float | None:
        with self._lock:
            work = self._models.get(model)
            return None if work is None else work.rate

    def totals(self) -> WorkTotals:
        with self._lock:
            rates: dict[str, float] = {}
            for model, work in self._models.items():
                if work.rate is not None:
                    label = work.label or model[:8]
                    rates[f"{label} {model[:8]}" if label in rates else label] = work.rate
            return WorkTotals(
                self._computing.seconds,
                self._restoring.seconds,
                self._saved_by_others + sum(work.saved for work in self._models.values()),
                rates,
            )


class RequestWork(NamedTuple):
    """One request's work, told when it has been done; calls of one request follow each other."""

    meter: WorkMeter
    model: _Model

    def computed(self, tokens: int, seconds: float) -> None:
        """Tell that a chunk of the prompt was computed in the last `seconds`; 0 tokens for one that
        a step of decoding took along."""
        meter, model, now = self.meter, self.model, self.meter._clock()
        with meter._lock:
            meter._computing.add(now - seconds, now)
            if tokens < RATED_TOKENS:
                return
            if model.tokens > RECENT_TOKENS:
                model.tokens, model.seconds = model.tokens / 2, model.seconds / 2
            model.tokens += tokens
            model.seconds += model.computing.add(now - seconds, now)
            model.rate = model.tokens / model.seconds if model.seconds > 0 else None
            model.price()

    def restored(self, tokens: int, seconds: float) -> None:
        meter, model, now = self.meter, self.model, self.meter._clock()
        with meter._lock:
            meter._restoring.add(now - seconds, now)
            model.price(tokens, model.restoring.add(now - seconds, now))

    def held(self, seconds: float) -> None:
        now = self.meter._clock()
        with self.meter._lock:
            self.model.price(seconds=self.model.restoring.add(now - seconds, now))


@dataclass
class Counters:
    """Thread-safe sums: `_lock` guards every field but `_deferred`, whose operations are atomic,
    and `work`, which guards itself."""

    work: WorkMeter = field(default_factory=WorkMeter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sums: Counter[str] = field(default_factory=Counter)
    _misses: Counter[str] = field(default_factory=Counter)
    _skips: Counter[str] = field(default_factory=Counter)
    _snapshot_peak: int = 0
    _deferred: deque[Callable[[], None]] = field(default_factory=deque)

    def defer(self, release: Callable[[], None]) -> None:
        """Have the next count or read call `release`. Takes no lock: a finalizer, which may run
        while its own thread holds any lock, may call this and nothing else."""
        self._deferred.append(release)

    def _run_deferred(self) -> None:
        while self._deferred:
            try:
                release = self._deferred.popleft()
            except IndexError:
                return
            release()

    @uninterrupted
    def add(
        self,
        *,
        miss: str | None = None,
        skips: Mapping[str, int] | None = None,
        **amounts: float,
    ) -> None:
        """Add to sums, which are named as in `RequestStats`; a `miss` and `skips` by reason."""
        if self._deferred:
            self._run_deferred()
        with self._lock:
            self._sums.update(amounts)
            self._misses.update([miss] if miss else ())
            self._skips.update(skips)

    @uninterrupted
    def skip(self, reason: str, pages: int = 1) -> None:
        with self._lock:
            self._skips[reason] += pages

    def take_snapshot(self, nbytes: int, limit_bytes: int) -> bool:
        """Count a live snapshot; False, and nothing counted, when it would exceed the limit."""
        self._run_deferred()
        with self._lock:
            total = self._sums["snapshot_bytes"] + nbytes
            if total > limit_bytes:
                return False
            self._sums.update(snapshots=1, snapshot_bytes=nbytes)
            self._snapshot_peak = max(self._snapshot_peak, total)
            return True

    def drop_snapshot(self, nbytes: int) -> None:
        self.add(snapshots=-1, snapshot_bytes=-nbytes)

    def requests(self) -> RequestStats:
        self._run_deferred()
        work = self.work.totals()._asdict()
        with self._lock:
            sums: dict[str, Any] = {one.name: self._sums[one.name] for one in fields(RequestStats)}
            # A store has the log of requests, which knows of live sessions.
            sums |= {"live_sessions": 0, "misses": dict(self._misses), "skips": dict(self._skips)}
        return RequestStats(**sums | work)

    def snapshots(self, limit_bytes: int) -> SnapshotStats:
        self._run_deferred()
        with self._lock:
            return SnapshotStats(
                self._sums["snapshots"],
                self._sums["snapshot_bytes"],
                self._snapshot_peak,
                limit_bytes,
            )
