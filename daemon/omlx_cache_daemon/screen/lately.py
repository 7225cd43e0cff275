"""The latest requests of a store, as its clients' sums and as a series over time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omlx_cache.requests.explanation import RequestRecord
from omlx_cache_daemon.replies import Map, as_answer, as_maps, count_of

REMEMBERED = 2048
STEP_SECONDS = 5.0
LATELY_SECONDS = 300.0
"""What counts as lately: the busiest namespaces are those of these minutes."""


class Records:
    """The requests that a store has told of, by their numbers; asks for the new ones and for those
    that had not ended. Mutable, of one thread: `_by_number`, `_after`."""

    def __init__(self) -> None:
        self._by_number: dict[int, RequestRecord] = {}
        self._after = 0

    def question(self) -> dict[str, object]:
        """Return the arguments of the operation `requests`."""
        under_way = [n for n, r in self._by_number.items() if r.total_seconds is None]
        return {"after": self._after, "open": under_way}

    def take(self, reply: Map) -> None:
        """Note what a reply tells; one whose numbers begin again is of another store."""
        upto = count_of(reply, "upto")
        if upto < self._after:
            self._by_number.clear()
            self._after = 0
            return
        records = [as_answer(RequestRecord, one) for one in as_maps(reply.get("records", []))]
        told = {record.number: record for record in records}
        for number in [n for n, r in self._by_number.items() if r.total_seconds is None]:
            # The store has forgotten it before it ended.
            if number not in told:
                del self._by_number[number]
        self._by_number |= told
        self._after = upto
        for number in sorted(self._by_number)[: max(0, len(self._by_number) - REMEMBERED)]:
            del self._by_number[number]

    def latest(self) -> list[RequestRecord]:
        """Return what is remembered, newest first."""
        return [self._by_number[number] for number in sorted(self._by_number, reverse=True)]


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


def busiest(records: Iterable[RequestRecord], now: float) -> list[Busy]:
    """Return the namespaces of the requests of the last `LATELY_SECONDS`, in no order."""
    found: dict[str, Busy] = {}
    for record in records:
        if now - record.asked_at > LATELY_SECONDS:
            continue
        fresh = Busy(record.namespace, record.model, record.salt)
        known = found.setdefault(record.namespace, fresh)
        known.requests += 1
        known.asked_tokens += record.prompt_tokens
        known.restored_tokens += record.restored_tokens
        known.last_at = max(known.last_at, record.asked_at)
    return list(found.values())


def series(records: Sequence[RequestRecord], now: float, steps: int) -> list[int]:
    """Return the restored tokens of each of the last `steps` times five seconds, oldest first. The
    steps lie at round times, so that a column keeps its height as it moves to the left."""
    sums = [0] * steps
    last = int(now // STEP_SECONDS)
    for record in records:
        back = last - int(record.asked_at // STEP_SECONDS)
        if 0 <= back < steps:
            sums[steps - 1 - back] += record.restored_tokens
    return sums
