"""What stores do, looked at again and again: their figures, rates and latest requests."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from omlx_cache.control.replies import ExplainedRequest
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.figures import Known, Rates, ask_figures, rates
from omlx_cache_daemon.replies import as_answer
from omlx_cache_daemon.stores import RunningStore
from omlx_cache_daemon.watching import Asking, Reply
from omlx_cache_storage.stats import Stats

ANSWER_SECONDS = 2.0
RATE_SECONDS = 10.0
"""Rates are means of so long: one request a second is not 0 and 10 in turn."""
LATELY_SECONDS = 300.0
"""What counts as lately: the busiest namespaces are those of these minutes."""
STEP_SECONDS, STEPS = 5.0, 240
"""What a value of a series stands for, and how many there are at most: requests are remembered for
as long as they last."""
_GONE_SECONDS = 60.0
_FIRST_REQUESTS, _REQUESTS = 512, 128


class Watched(NamedTuple):
    """What a store said at one look: its figures, its rates, {} at the first, and its requests, the
    newest first."""

    known: Known
    rates: Rates
    requests: Sequence[ExplainedRequest]


class Lookout:
    """Watches the stores that `find` gives, those that come later too.

    One thread may call. Mutable: `gone`, what to say of stores that went in the last minute, and
    when they did, and `_here`, the replies of those that did not; `_samples` and `_requests` hold
    what was known at the last looks, by socket, and belong to the store's own thread.
    """

    def __init__(self, find: Callable[[], Sequence[RunningStore]]) -> None:
        self.gone: list[tuple[float, str]] = []
        self._find = find
        self._asking = Asking(self._look, ANSWER_SECONDS)
        self._here: dict[str, Reply] = {}
        self._samples: dict[str, deque[tuple[float, Stats]]] = {}
        self._requests: dict[str, dict[int, ExplainedRequest]] = {}

    def look(self, seconds: float) -> list[Reply]:
        """Ask all stores, wait for so long, and return the replies of those that are there."""
        replies = self._asking.ask(self._find(), seconds)
        here = {str(reply.store.path): reply for reply in replies if not reply.has_gone}
        now = time.monotonic()
        went = [reply for path, reply in self._here.items() if path not in here and reply.answer]
        self.gone += [
            (now, f"{r.answer.known.title}, process {r.store.pid}, has gone") for r in went
        ]
        self.gone = [(at, said) for at, said in self.gone if now - at < _GONE_SECONDS]
        self._here = here
        return sorted(here.values(), key=lambda reply: reply.store.pid or 0)

    def _look(self, client: Client) -> Watched:
        path = str(client.path)
        figures = ask_figures(client)
        known = self._requests.setdefault(path, {})
        limit = _REQUESTS if known else _FIRST_REQUESTS
        told = as_answer(tuple[ExplainedRequest, ...], client.call("recent", limit=limit))
        # Numbers that begin again are those of another store in the same place.
        newest, oldest = told[0].number if told else 0, time.time() - STEP_SECONDS * STEPS
        kept = [
            one
            for number, one in known.items()
            if number < newest and one.total_seconds and one.asked_at > oldest
        ]
        known = self._requests[path] = {one.number: one for one in (*kept, *told)}
        latest = [known[number] for number in sorted(known, reverse=True)]
        return Watched(figures, self._rates(path, figures.stats), latest)

    def _rates(self, path: str, stats: Stats) -> Rates:
        """Return the rates of the last ten seconds, {} at the first look."""
        at, samples = time.monotonic(), self._samples.setdefault(path, deque())
        while len(samples) > 1 and at - samples[1][0] >= RATE_SECONDS:
            samples.popleft()
        before = samples[0][1] if samples else None
        samples.append((at, stats))
        return {} if before is None else rates(before, stats)


@dataclass(slots=True)
class Busy:
    """A namespace with what was asked of it lately."""

    namespace: str
    model: str
    salt: str
    requests: int = 0
    asked_tokens: int = 0
    restored_tokens: int = 0
    last_at: float = 0.0

    @property
    def hit_ratio(self) -> float:
        return self.restored_tokens / self.asked_tokens if self.asked_tokens else 0.0


def busiest(told: Sequence[ExplainedRequest], now: float) -> list[Busy]:
    """Return the namespaces of the requests of the last `LATELY_SECONDS`, most restored first."""
    found: dict[str, Busy] = {}
    for record in (one for one in told if now - one.asked_at <= LATELY_SECONDS):
        fresh = Busy(record.namespace, record.model, record.salt)
        known = found.setdefault(record.namespace, fresh)
        known.requests += 1
        known.asked_tokens += record.prompt_tokens
        known.restored_tokens += record.restored_tokens
        known.last_at = max(known.last_at, record.asked_at)
    return sorted(found.values(), key=attrgetter("restored_tokens"), reverse=True)


def series(told: Sequence[ExplainedRequest], now: float, steps: int) -> list[int]:
    """Return the restored tokens of each of the last `steps` times five seconds, oldest first. The
    steps lie at round times, so that a column keeps its height as it moves to the left."""
    sums = [0] * steps
    last = int(now // STEP_SECONDS)
    for record in told:
        back = last - int(record.asked_at // STEP_SECONDS)
        if 0 <= back < steps:
            sums[steps - 1 - back] += record.restored_tokens
    return sums
