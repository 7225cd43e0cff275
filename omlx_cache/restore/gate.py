"""Whether a restore reads: what reading and computing took lately decides, and is asked again."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx_cache.restore.worth import Candidates, Choice, Costs, choose
from omlx_cache_storage.costs import ReadCost
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.work import WorkMeter

TRY_AFTER = 8
"""After so many restores that were passed by, one reads all the same: the disk may be free by now.
That costs an eighth of what they have gained."""
KINDS = 64
ASKING_TRIPS = 3
"""To ask takes two round trips or three, and to read one more at least."""


class Link(NamedTuple):
    """What the way to other machines takes: seconds for an answer, and for a byte, None before that
    is known."""

    latency: float
    per_byte: float | None


@dataclass(slots=True)
class _Kind:
    """What is known of pages of one model and form: `passed` since one was read to try."""

    cost: ReadCost = field(default_factory=ReadCost)
    remote: ReadCost = field(default_factory=ReadCost)
    passed: int = 0


class ReadingGate:
    """Learns what restores take, by kinds of pages, and lets those be passed by that take clearly
    longer than computing. Any thread may call; nothing raises or waits.

    Whatever is not known is read: before three restores from the disk and 1,024 tokens of the model
    were measured in this process, or none lately, or none of such a size. `_lock` guards `_kinds`
    (64, the latest used last).
    """

    def __init__(
        self,
        work: WorkMeter,
        *,
        enabled: bool,
        clock: Callable[[], float] = time.monotonic,
        link: Callable[[], Link | None] = lambda: None,
    ) -> None:
        self._link = link
        self._work = work
        self._enabled = enabled
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()

    @uninterrupted
    def restore(self, model: str, kind: Hashable, *, tries: bool = True) -> "GatedRestore":
        """Return what decides for one restore of a model, of pages that cost as much to read as
        others of their kind; without `tries` for one that is only asked about."""
        with self._lock:
            known = self._kinds.setdefault((model, kind), _Kind())
            self._kinds.move_to_end((model, kind))
            if len(self._kinds) > KINDS:
                self._kinds.popitem(last=False)
        return GatedRestore(self, model, known, tries=tries)

    def _costs(
        self, model: str, known: _Kind, nbytes: int, remote_bytes: int, position: int
    ) -> Costs | None:
        """Return what is known of a restore of so many cold bytes, and so many of other machines;
        None when too little is."""
        if not self._enabled:
            return None
        with self._lock:
            now = self._clock()
            per_byte = known.cost.per_byte(nbytes, now)
            far = known.remote.per_byte(remote_bytes, now) if remote_bytes else 0.0
        if far is None:
            # Before three restores were measured the link's own rate is the least that one takes.
            link = self._link()
            far = None if link is None else link.per_byte
        if (per_byte is None and nbytes) or far is None:
            return None
        token = self._work.token_cost(model)
        if token is None or not token.knows(position):
            return None
        return Costs(per_byte or 0.0, token, far)

    def _may_try(self, known: _Kind) -> bool:
        """True when it is time to read in spite of all; then not again for a while."""
        with self._lock:
            if known.passed < TRY_AFTER:
                return False
            known.passed = 0
            return True

    def _note(self, cost: ReadCost, nbytes: int, seconds: float) -> None:
        with self._lock:
            cost.add(nbytes, seconds, self._clock())

    def _note_passed(self, known: _Kind) -> None:
        with self._lock:
            known.passed += 1


class GatedRestore:
    """Decides for one restore, as often as it looks, and is told what it took. Any thread may call.

    Mutable: `_reads`, set for good once it reads to try.
    """

    def __init__(self, gate: ReadingGate, model: str, known: _Kind, *, tries: bool) -> None:
        self._gate = gate
        self._model = model
        self._known = known
        self._tries = tries
        self._reads = False

    @uninterrupted
    def choose(self, candidates: Candidates) -> Choice:
        """Return how much to restore; the longest unless it is known that computing is quicker."""
        longest = candidates.longest
        if self._reads or self._gate._costs(self._model, self._known, 0, 0, longest) is None:
            return Choice(longest)
        nbytes, far = candidates.cold_bytes(longest), candidates.remote_bytes(longest)
        costs = None
        if nbytes or far:
            costs = self._gate._costs(self._model, self._known, nbytes, far, longest)
        if costs is None:
            return Choice(longest)
        choice = choose(costs, candidates)
        if choice.passed is None:
            return choice
        self._reads = self._tries and self._gate._may_try(self._known)
        return Choice(longest) if self._reads else choice

    @uninterrupted
    def worth_asking(self, start: int, stop: int) -> bool:
        """Return whether to ask other machines for the tokens [start, stop): not when to compute
        them is known to take less than to ask and to read."""
        link = self._gate._link()
        token = self._gate._work.token_cost(self._model)
        if link is None or token is None or not self._gate._enabled or not token.knows(stop):
            return True
        return token.seconds(start, stop) > ASKING_TRIPS * link.latency

    @uninterrupted
    def took(self, nbytes: int, cold_bytes: int, seconds: float, remote_bytes: int = 0) -> None:
        """Note a restore of `nbytes`, of which the disk gave `cold_bytes` and other machines
        `remote_bytes`. One that was mostly in memory says nothing of either."""
        if 2 * remote_bytes >= nbytes:
            self._gate._note(self._known.remote, remote_bytes, seconds)
        elif 2 * cold_bytes >= nbytes:
            self._gate._note(self._known.cost, cold_bytes, seconds)

    @uninterrupted
    def passed_by(self) -> None:
        """Note that the restore left to computing what might have been read."""
        self._gate._note_passed(self._known)
