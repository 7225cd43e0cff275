"""Simulates one set of tiers, or several, over one workload."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from omlx_cache.simulate.costs import DAY_SECONDS, Costs
from omlx_cache.simulate.errors import SimulationError
from omlx_cache.simulate.optimum import next_uses, optimum
from omlx_cache.simulate.pages import SimulatedPages
from omlx_cache.simulate.replay import Replay
from omlx_cache.simulate.requests import Workload
from omlx_cache.simulate.shapes import Shape
from omlx_cache.simulate.virtual import DirectWriter, VirtualClock, VirtualCold, room_for
from omlx_cache_storage.cold.catalog import uncollected
from omlx_cache_storage.events import Departures, How
from omlx_cache_storage.eviction.keep import Keep, Lru
from omlx_cache_storage.hot_page import WRITE_POLICIES
from omlx_cache_storage.tiers import Tiers

START_NS = 1_700_000_000 * 10**9
"""When virtual time begins: later than the stamps of superseded pages."""
POLICIES: Final = {"keep": Keep, "lru": Lru}
"""What stores do, and least recently used first to compare it with."""
QUEUED_PAGES = 64
"""What waits for the disk at most where no page stays in memory."""


class Room(NamedTuple):
    """A budget: so many bytes, or as many as so many tokens take."""

    amount: int
    is_tokens: bool = False

    def pages(self, nbytes: int, block_size: int) -> int:
        """Return how many pages it has room for, headers of files aside."""
        return self.amount // block_size if self.is_tokens else self.amount // nbytes


class Setup(NamedTuple):
    """What is varied: the tiers' room and their policies. `agents` is how many sessions run at a
    time, 0 for a trace without sessions."""

    agents: int
    hot: Room
    cold: Room
    policy: str
    write_policy: str


@dataclass(slots=True)
class Outcome:
    """What a workload was served by one set of tiers. Tokens are those of prompts; pages that were
    `refused` found no room in memory, or the disk's was taken by others."""

    setup: Setup
    hot_bytes: int
    cold_bytes: int
    requests: int = 0
    references: int = 0
    seconds: float = 0.0
    tokens_in: int = 0
    hot_tokens: int = 0
    cold_tokens: int = 0
    optimum_tokens: int = 0
    saved_seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    refused_pages: int = 0
    evicted_pages: int = 0
    cold_refused_pages: int = 0
    cold_evicted_pages: int = 0

    @property
    def tokens(self) -> int:
        return self.hot_tokens + self.cold_tokens

    @property
    def share(self) -> float:
        """The share of all prompts' tokens that was served."""
        return self.tokens / self.tokens_in if self.tokens_in else 0.0

    @property
    def optimum_share(self) -> float:
        return self.optimum_tokens / self.tokens_in if self.tokens_in else 0.0

    @property
    def ratio(self) -> float:
        """What was served, of what the optimum would have."""
        return self.tokens / self.optimum_tokens if self.optimum_tokens else 1.0

    @property
    def written_per_token(self) -> float:
        """Bytes written for each token of a prompt that came."""
        return self.written_bytes / self.tokens_in if self.tokens_in else 0.0

    @property
    def room_bytes(self) -> int:
        return self.hot_bytes + self.cold_bytes

    def saved_each_day(self) -> float | None:
        """Return the seconds saved in a day of such requests, None for a trace too short to say."""
        return self.saved_seconds / self.seconds * DAY_SECONDS if self.seconds >= 60 else None


class Rooms(NamedTuple):
    """What a setup comes to for pages of one size: bytes, and how many pages in all."""

    hot_bytes: int
    cold_bytes: int
    pages: int


def rooms(setup: Setup, nbytes: int, block_size: int) -> Rooms:
    """Return what budgets come to for pages of `nbytes`."""
    hot, cold = setup.hot.pages(nbytes, block_size), setup.cold.pages(nbytes, block_size)
    hot_bytes = hot * nbytes if setup.hot.is_tokens else setup.hot.amount
    cold_bytes = room_for(cold, nbytes) if setup.cold.is_tokens else setup.cold.amount
    return Rooms(hot_bytes, cold_bytes if cold else 0, hot + cold)


def simulated_tiers(setup: Setup, sizes: Rooms, nbytes: int, clock: VirtualClock) -> Tiers:
    """Return one machine's tiers, whose writer writes at once, in the time of a clock."""
    none = _NoDepartures(1)
    policy = POLICIES[setup.policy]
    cold = None
    if sizes.cold_bytes:
        cold = VirtualCold(sizes.cold_bytes, clock=clock, departures=none, policy=policy)
    return Tiers(
        hot_bytes=sizes.hot_bytes,
        # Without memory of its own a tier only passes on what goes to the disk.
        queue_bytes=sizes.hot_bytes or (QUEUED_PAGES * nbytes if cold is not None else 0),
        policy=WRITE_POLICIES[setup.write_policy],
        clock=clock,
        cold=cold,
        documents=lambda namespace: {},
        eviction=policy(None),
        departures=none,
        writer=DirectWriter,
    )


class _NoDepartures(Departures):
    """Remembers nothing: nobody asks a simulation why a page left."""

    def note(self, pages: object, how: How) -> None:
        """Note nothing."""


class Simulator:
    """Replays one workload with pages of one model. Mutable: what it has computed once."""

    def __init__(self, workload: Workload, shape: Shape, costs: Costs) -> None:
        if not workload.references:
            raise SimulationError("no prompt of the trace has a complete page: nothing is kept")
        self._workload = workload
        self._costs = costs
        self.page_bytes = shape.token_bytes * workload.block_size
        self._pages = SimulatedPages(workload, self.page_bytes)
        self._uses: list[list[int]] | None = None
        self._optima: dict[int, int] = {}

    def run(self, setup: Setup) -> Outcome:
        """Return what the workload is served by these tiers."""
        nbytes, size = self.page_bytes, self._workload.block_size
        sizes = rooms(setup, nbytes, size)
        outcome = Outcome(setup, sizes.hot_bytes, sizes.cold_bytes)
        clock = VirtualClock(START_NS)
        tiers = simulated_tiers(setup, sizes, nbytes, clock)
        with uncollected():
            self._serve(tiers, clock, outcome)
        usage = tiers.hot.usage()
        outcome.evicted_pages = usage.evicted_pages
        if tiers.cold is not None and tiers.writer is not None:
            outcome.written_bytes = tiers.writer.usage().written_bytes
            outcome.cold_refused_pages = tiers.cold.usage().refused_pages
            outcome.cold_evicted_pages = tiers.cold.usage().evicted_pages
        outcome.optimum_tokens = self._optimum(sizes.pages)
        return outcome

    def _serve(self, tiers: Tiers, clock: VirtualClock, outcome: Outcome) -> None:
        replay = Replay(tiers, self._workload, self._pages)
        for request in self._workload.requests:
            clock.set(START_NS + int(request.at * 1e9))
            if isinstance(tiers.writer, DirectWriter):
                tiers.writer.tick()
            served = replay.serve(request)
            outcome.hot_tokens += served.hot_tokens
            outcome.cold_tokens += served.cold_tokens
            outcome.read_bytes += served.cold_bytes
            outcome.refused_pages += served.refused_pages
            outcome.saved_seconds += self._costs.saved(served.tokens, served.cold_bytes)
        outcome.requests = len(self._workload.requests)
        outcome.references = self._workload.references
        outcome.seconds = self._workload.seconds
        outcome.tokens_in = self._workload.tokens_in

    def _optimum(self, room: int) -> int:
        """Return the tokens that no policy of so many pages' room could have exceeded."""
        if self._uses is None:
            self._uses = next_uses(self._workload)
        if room not in self._optima:
            self._optima[room] = optimum(self._workload, room, self._uses)
        return self._optima[room] * self._workload.block_size


def check(setups: Sequence[Setup]) -> None:
    """Raise SimulationError for what no tiers can be made of."""
    for setup in setups:
        if setup.policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise SimulationError(f"there is no policy {setup.policy!r}: there are {known}")
        if setup.write_policy not in WRITE_POLICIES:
            known = ", ".join(WRITE_POLICIES)
            raise SimulationError(f"there is no write policy {setup.write_policy!r}: {known}")


def combinations(
    agents: Sequence[int],
    hot: Sequence[Room],
    cold: Sequence[Room],
    policies: Sequence[str],
    write_policies: Sequence[str],
) -> Iterator[Setup]:
    """Yield every combination; one without a disk once, whatever the write policies."""
    for number in agents:
        for policy in policies:
            for behind in cold:
                for written in write_policies if behind.amount else write_policies[:1]:
                    for room in hot:
                        yield Setup(number, room, behind, policy, written)
