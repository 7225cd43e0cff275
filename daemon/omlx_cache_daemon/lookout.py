"""Repeated looks at stores: their figures, rates and latest requests."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from omlx_cache.control.replies import ExplainedRequest
from omlx_cache_daemon.client import Client, as_answer
from omlx_cache_daemon.figures import Known, Rates, ask_figures, rates
from omlx_cache_daemon.render import text
from omlx_cache_daemon.stores import StoreQuestion, StoreReply
from omlx_cache_storage.stats import Stats

ANSWER_SECONDS = 2.0
RATE_SECONDS = 10.0
"""Rates are means of so long: one request a second is not 0 and 10 in turn."""
LATELY_SECONDS = 300.0
STEP_SECONDS, STEPS = 5.0, 240
"""Seconds of one value of a series; requests are remembered for as long as all of them last."""
_GONE_SECONDS = 60.0
_REQUESTS, _ALL_REQUESTS = 40, 512
"""As many are asked for at each look, and as many where some came in between."""


class Watched(NamedTuple):
    """A store's figures at one look, its rates, {} at the first, and its requests, the newest
    first."""

    known: Known
    rates: Rates
    requests: Sequence[ExplainedRequest]


class Lookout:
    """Watches the stores that `find` gives, later ones too.

    One thread may call. Mutable: `gone`, the times and lines of stores that ended in the last
    minute, and `_here`, the replies of the running ones. `_samples` and `_requests` have the
    figures of the last looks, by socket; each belongs to the thread that asks its store.
    """

    def __init__(self, find: Callable[[], Sequence[Client]]) -> None:
        self.gone: list[tuple[float, str]] = []
        self._find = find
        self._question = StoreQuestion(self._look, ANSWER_SECONDS)
        self._here: dict[str, StoreReply] = {}
        self._samples: dict[str, deque[tuple[float, Stats]]] = {}
        self._requests: dict[str, dict[int, ExplainedRequest]] = {}

    def look(self, seconds: float) -> list[StoreReply]:
        """Ask all stores, wait for so long, and return the replies of the running ones."""
        replies = self._question.ask(self._find(), seconds)
        here = {str(reply.store.path): reply for reply in replies if not reply.has_gone}
        now = time.monotonic()
        for path, reply in self._here.items():
            if path not in here:
                self.gone.append((now, f"{name_of(reply)}, process {reply.store.pid}, has gone"))
        self.gone = [(at, said) for at, said in self.gone if now - at < _GONE_SECONDS]
        self._here = here
        return list(here.values())

    def _look(self, client: Client) -> Watched:
        path = str(client.path)
        figures = ask_figures(client)
        known = self._requests.setdefault(path, {})
        told = _recent(client, _REQUESTS)
        if told and told[-1].number > max(known, default=0) + 1:
            told = _recent(client, _ALL_REQUESTS)
        # Numbers that begin again belong to another store in the same place.
        newest, oldest = told[0].number if told else 0, time.time() - STEP_SECONDS * STEPS
        kept = {
            number: one
            for number, one in known.items()
            if number < newest and one.total_seconds and one.asked_at > oldest
        }
        self._requests[path] = kept | {one.number: one for one in told}
        latest = sorted(self._requests[path].values(), key=attrgetter("number"), reverse=True)
        return Watched(figures, self._rates(path, figures.stats), latest)

    def _rates(self, path: str, stats: Stats) -> Rates:
        """Return the rates of the last ten seconds, {} at the first look."""
        at, samples = time.monotonic(), self._samples.setdefault(path, deque())
        while len(samples) > 1 and at - samples[1][0] >= RATE_SECONDS:
            samples.popleft()
        before = samples[0][1] if samples else None
        samples.append((at, stats))
        return {} if before is None else rates(before, stats)


def name_of(reply: StoreReply) -> str:
    return text(reply.answer.known.title) if reply.answer else "store"


def _recent(client: Client, limit: int) -> Sequence[ExplainedRequest]:
    return as_answer(tuple[ExplainedRequest, ...], client.call("recent", limit=limit))


def busiest(requests: Sequence[ExplainedRequest], now: float) -> list[Sequence[ExplainedRequest]]:
    """Return the requests of the last `LATELY_SECONDS` by namespace, most restored first."""
    found = defaultdict[str, list[ExplainedRequest]](list)
    for one in requests:
        if now - one.asked_at <= LATELY_SECONDS:
            found[one.namespace].append(one)
    return sorted(found.values(), key=lambda each: -sum(one.restored_tokens for one in each))


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
