"""What computing and restoring took, by wall time, and what restoring has saved."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx_cache_storage.costs import ComputeCost, TokenCost
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.intervals import Intervals

RATED_TOKENS = 128
"""A request that computes fewer tells no rate: what it costs besides would pass for computing."""
KNOWN_TOKENS = 100_000
"""An earlier process's rate counts for so many tokens at most: what is measured now weighs more."""
MODELS = 64


@dataclass(frozen=True, slots=True)
class PrefillRate:
    """So many tokens were computed in so many seconds of wall time; neither is zero."""

    tokens: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds

    def limited(self, tokens: int) -> "PrefillRate":
        """Return the same rate, measured on `tokens` at most."""
        if self.tokens <= tokens:
            return self
        return PrefillRate(tokens, self.seconds * tokens / self.tokens)


class Step(NamedTuple):
    """So many tokens of a prompt from `start` on, computed from `began` to `ended`; an empty time
    for a token that a step of decoding took along."""

    start: int
    tokens: int
    began: float
    ended: float


class UnsavedRate(NamedTuple):
    """A model's rate that is worth keeping, with the namespace in which it was measured last."""

    model: str
    namespace: str
    rate: PrefillRate


class WorkTotals(NamedTuple):
    """`saved_seconds` is an estimate: what the restored tokens would have taken to compute at the
    rate that was known then, less what restoring took, and waiting for another request's blocks; 0
    for models of which no rate is known. Rates are by the models' labels."""

    prefill_seconds: float
    restore_seconds: float
    saved_seconds: float
    tokens_per_second: Mapping[str, float]


@dataclass(slots=True)
class _Model:
    """One model's work. `known` was measured before; `saved_at` of `tokens` had been measured when
    its rate was kept last. `unpriced_tokens` were restored at a cost of `unpriced_seconds` before
    any rate was known; whatever else was restored is in `saved`, priced once."""

    label: str
    namespace: str
    known: PrefillRate | None = None
    tokens: int = 0
    cost: ComputeCost = field(default_factory=ComputeCost)
    computing: Intervals = field(default_factory=Intervals)
    restoring: Intervals = field(default_factory=Intervals)
    waiting: Intervals = field(default_factory=Intervals)
    saved: float = 0.0
    unpriced_tokens: int = 0
    unpriced_seconds: float = 0.0
    saved_at: int = 0

    def rate(self) -> PrefillRate | None:
        """Return the mean of all that is known; None before anything was measured."""
        tokens, seconds = self.tokens, self.computing.seconds
        if self.known is not None:
            tokens, seconds = tokens + self.known.tokens, seconds + self.known.seconds
        return PrefillRate(tokens, seconds) if tokens and seconds > 0 else None

    def price(self, tokens: int = 0, seconds: float = 0.0) -> None:
        """Count what restoring `tokens` has saved, at a cost of `seconds`, and with it what waits
        for the first rate. A rate that moves later changes nothing of it."""
        self.unpriced_tokens += tokens
        self.unpriced_seconds += seconds
        rate = self.rate()
        if rate is not None:
            self.saved += self.unpriced_tokens / rate.per_second - self.unpriced_seconds
            self.unpriced_tokens, self.unpriced_seconds = 0, 0.0


class WorkMeter:
    """Adds up work that may go on in parallel, by wall time. Any thread may call.

    A model's rate assumes that all its tokens cost the same, which attention makes untrue for long
    prompts: later ones cost more. `token_cost` knows better, of this process only. `_lock`
    guards `_models` (64, the latest used last), `_known`, and the sums.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._models: OrderedDict[str, _Model] = OrderedDict()
        self._known: dict[str, PrefillRate] = {}
        self._computing = Intervals()
        self._restoring = Intervals()
        self._saved_by_others = 0.0

    @uninterrupted
    def request(self, model: str, label: str, namespace: str) -> "RequestWork":
        """Begin to measure a request for a model, whose salts and settings share its rate."""
        with self._lock:
            known = self._models.get(model)
            if known is None:
                known = self._models[model] = _Model(label, namespace, self._known.get(model))
                if len(self._models) > MODELS:
                    self._saved_by_others += self._models.popitem(last=False)[1].saved
            self._models.move_to_end(model)
        return RequestWork(self, known, namespace)

    @uninterrupted
    def know(self, model: str, rate: PrefillRate) -> None:
        """Take a rate from before; of several for one model the one that more tokens tell."""
        rate = rate.limited(KNOWN_TOKENS)
        with self._lock:
            before = self._known.get(model)
            if before is None or before.tokens < rate.tokens:
                self._known[model] = rate
                if model in self._models:
                    self._models[model].known = rate
                    self._models[model].price()

    @uninterrupted
    def unsaved(self, *, all_of_them: bool) -> list[UnsavedRate]:
        """Return the rates that rest on twice as many tokens as those that were kept; with
        `all_of_them`, on any more."""
        found = []
        with self._lock:
            for model, work in self._models.items():
                rate, new = work.rate(), work.tokens - work.saved_at
                kept = work.saved_at + (0 if work.known is None else work.known.tokens)
                due = new >= RATED_TOKENS and (all_of_them or new >= kept)
                if rate is not None and due and work.namespace:
                    found.append(UnsavedRate(model, work.namespace, rate))
        return found

    @uninterrupted
    def saved(self, kept: UnsavedRate) -> None:
        """Note that a rate was kept."""
        with self._lock:
            work = self._models.get(kept.model)
            if work is not None:
                before = 0 if work.known is None else work.known.tokens
                work.saved_at = max(work.saved_at, kept.rate.tokens - before)

    @uninterrupted
    def token_cost(self, model: str) -> TokenCost | None:
        """Return what a token costs a model to compute, as measured lately in this process; None
        before enough was."""
        with self._lock:
            work = self._models.get(model)
            return None if work is None else work.cost.cost()

    @uninterrupted
    def totals(self) -> WorkTotals:
        with self._lock:
            rates: dict[str, float] = {}
            for model, work in self._models.items():
                rate = work.rate()
                if rate is not None:
                    label = work.label or model[:8]
                    rates[f"{label} {model[:8]}" if label in rates else label] = rate.per_second
            saved = sum(work.saved for work in self._models.values())
            return WorkTotals(
                self._computing.seconds,
                self._restoring.seconds,
                self._saved_by_others + saved,
                rates,
            )

    def _ended(self, seconds: float) -> tuple[float, float]:
        """Return when work began that ends now; never before the meter did."""
        now = self._clock()
        return max(self._started, now - seconds), now

    @uninterrupted
    def _computed(self, seconds: float) -> tuple[float, float]:
        interval = self._ended(seconds)
        with self._lock:
            self._computing.add(*interval)
        return interval

    @uninterrupted
    def _rated(self, work: _Model, namespace: str, steps: list[Step]) -> None:
        with self._lock:
            work.namespace = namespace
            for step in steps:
                work.tokens += step.tokens
                new = work.computing.add(step.began, step.ended)
                if step.began < step.ended:
                    work.cost.add(step.start, step.tokens, new)
            work.price()

    @uninterrupted
    def _restored(self, work: _Model, tokens: int, seconds: float) -> None:
        interval = self._ended(seconds)
        with self._lock:
            self._restoring.add(*interval)
            work.price(tokens, work.restoring.add(*interval))

    @uninterrupted
    def _held(self, work: _Model, seconds: float) -> None:
        interval = self._ended(seconds)
        with self._lock:
            work.price(seconds=work.waiting.add(*interval))


class RequestWork:
    """One request's work, told when it has been done; calls of one request follow each other.

    Mutable: `_reached` (where in the prompt it is), `_tokens`, and `_steps` until they tell a rate.
    """

    def __init__(self, meter: WorkMeter, model: _Model, namespace: str) -> None:
        self._meter = meter
        self._model = model
        self._namespace = namespace
        self._reached = 0
        self._tokens = 0
        self._steps: list[Step] = []

    def computed(self, tokens: int, seconds: float) -> None:
        """Tell that tokens of the prompt were computed in the last `seconds`; 0 for a token that a
        step of decoding took along."""
        self._steps.append(Step(self._reached, tokens, *self._meter._computed(seconds)))
        self._reached += tokens
        self._tokens += tokens
        if self._tokens >= RATED_TOKENS:
            steps, self._steps = self._steps, []
            self._meter._rated(self._model, self._namespace, steps)

    def restored(self, tokens: int, seconds: float) -> None:
        """Tell that tokens were restored, or looked for in vain, in the last `seconds`."""
        self._reached = tokens
        self._meter._restored(self._model, tokens, seconds)

    def held(self, seconds: float) -> None:
        """Tell that the request waited for another one's blocks, in the last `seconds`."""
        self._meter._held(self._model, seconds)
