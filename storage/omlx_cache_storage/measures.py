"""Durations, counted in fixed buckets as Prometheus has them; and the wall time that computing and
restoring took, and that restoring has saved."""

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

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


@dataclass(frozen=True, slots=True)
class Histogram:
    """One measure at one moment: `buckets` are (bound, how many were no larger); `count` includes
    those beyond the last bound."""

    buckets: tuple[tuple[float, int], ...]
    sum: float
    count: int


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
    """The union of the intervals that were added, in any order, as seconds. What lies before the
    latest 64 stretches counts no more, so that `seconds` is never more than the union. Its owner
    guards it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._spans: list[tuple[float, float]] = []
        self._floor = float("-inf")

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
    """`saved_seconds` is an estimate, as in `RequestStats`. Rates are by the models' labels."""

    prefill_seconds: float
    restore_seconds: float
    saved_seconds: float
    tokens_per_second: Mapping[str, float]


@dataclass(slots=True)
class _Model:
    """One model's work. `tokens` took `seconds` lately. `restoring` is when requests restored, or
    waited for others that compute. `unpriced_tokens` were restored at a cost of `unpriced_seconds`
    before any rate was known; other restored tokens are in `saved`, priced once."""

    label: str
    tokens: float = 0.0
    seconds: float = 0.0
    computing: Intervals = field(default_factory=Intervals)
    restoring: Intervals = field(default_factory=Intervals)
    saved: float = 0.0
    unpriced_tokens: int = 0
    unpriced_seconds: float = 0.0

    def add(self, tokens: int, began: float, ended: float) -> None:
        if self.tokens > RECENT_TOKENS:
            self.tokens, self.seconds = self.tokens / 2, self.seconds / 2
        self.tokens += tokens
        self.seconds += self.computing.add(began, ended)

    @property
    def rate(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None

    def price(self, tokens: int = 0, seconds: float = 0.0) -> None:
        """Count what restoring `tokens` has saved, at a cost of `seconds`, and with it what waits
        for the first rate. A later rate changes nothing of it."""
        self.unpriced_tokens += tokens
        self.unpriced_seconds += seconds
        rate = self.rate
        if rate is not None:
            self.saved += self.unpriced_tokens / rate - self.unpriced_seconds
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
        self._computing = Intervals()
        self._restoring = Intervals()
        self._saved_by_others = 0.0

    def request(self, model: str, label: str) -> "RequestWork":
        with self._lock:
            known = self._models.setdefault(model, _Model(label))
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

    def _ended(self, seconds: float) -> tuple[float, float]:
        now = self._clock()
        return max(self._started, now - seconds), now


class RequestWork:
    """One request's work, told when it has been done; calls of one request follow each other."""

    def __init__(self, meter: WorkMeter, model: _Model) -> None:
        self._meter = meter
        self._model = model

    def computed(self, tokens: int, seconds: float) -> None:
        """Tell that a chunk of the prompt was computed in the last `seconds`; 0 tokens for one that
        a step of decoding took along."""
        meter, interval = self._meter, self._meter._ended(seconds)
        with meter._lock:
            meter._computing.add(*interval)
            if tokens >= RATED_TOKENS:
                self._model.add(tokens, *interval)
                self._model.price()

    def restored(self, tokens: int, seconds: float) -> None:
        meter, interval = self._meter, self._meter._ended(seconds)
        with meter._lock:
            meter._restoring.add(*interval)
            self._model.price(tokens, self._model.restoring.add(*interval))

    def held(self, seconds: float) -> None:
        interval = self._meter._ended(seconds)
        with self._meter._lock:
            self._model.price(seconds=self._model.restoring.add(*interval))
