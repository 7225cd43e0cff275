"""Simulates one set of tiers over a workload: the tokens that they restore, beside the optimum.

The optimum is the most that any policy could have served: Belady's MIN with bypass, for chains of
pages. MIN evicts the page whose next use is farthest, of equal ones the deepest; it rejects a new
page whose next use is no nearer. The tiers then always have the beginning of a chain. Pages are of
one size. Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer",
1966.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from omlx_cache.settings.sizes import format_size
from omlx_cache.simulate.replay import Replay, Replayed
from omlx_cache.simulate.tiers import (
    DirectWriter,
    SimulatedPages,
    VirtualClock,
    VirtualCold,
    room_for,
)
from omlx_cache.simulate.traces import Request, SimulationError, Workload
from omlx_cache_storage.cold.catalog import uncollected
from omlx_cache_storage.events import Departures
from omlx_cache_storage.eviction.keep import Keep, Lru
from omlx_cache_storage.hot_page import WRITE_POLICIES
from omlx_cache_storage.tiers import Tiers


@dataclass(frozen=True, slots=True)
class Shape:
    """`token_bytes` of a model's layers that need every token. One that `ages` has windows or
    recurrent snapshots too, which are not replayed."""

    name: str
    token_bytes: int
    ages: bool = False


DEFAULT_SHAPE: Final = "llama-3.1-8b"
SHAPES: Final = {
    name: Shape(name, layers * kv_heads * head_dim * 2 * 2, ages)
    for name, layers, kv_heads, head_dim, ages in (
        ("llama-3.1-8b", 32, 8, 128, False),
        ("llama-3.3-70b", 80, 8, 128, False),
        ("mistral-small-24b", 40, 8, 128, False),
        ("qwen2.5-7b", 28, 4, 128, False),
        ("qwen3-8b", 36, 8, 128, False),
        ("qwen3-32b", 64, 8, 128, False),
        ("qwen3-coder-30b-a3b", 48, 4, 128, False),
        ("glm-4.5-air", 46, 8, 128, False),
        ("gpt-oss-20b", 12, 8, 64, True),
        ("gpt-oss-120b", 18, 8, 64, True),
        ("gemma-3-12b", 8, 8, 256, True),
        ("gemma-3-27b", 10, 16, 128, True),
        ("qwen3-next-80b-a3b", 12, 2, 256, True),
    )
}
"""In bfloat16, keys and values: the layers that need every token, their KV heads and channels."""

_NEVER = 0


def next_uses(workload: Workload) -> list[list[int]]:
    """Return, for each page of each request, which request asks for it next, counted from the end
    of the trace; 0 when none does."""
    count = len(workload.requests)
    coming = [_NEVER] * workload.pages
    found: list[list[int]] = [[]] * count
    for at in range(count - 1, -1, -1):
        request = workload.requests[at]
        pages = request.pages
        found[at] = [coming[page] for page in pages]
        for page in pages[: request.asked]:
            coming[page] = count - at
    return found


def optimum(workload: Workload, room: int, uses: list[list[int]]) -> int:
    """Return how many of the requested pages a cache of `room` pages could have restored; `uses`
    are of `next_uses`."""
    longest = max((len(request.pages) for request in workload.requests), default=0)
    depth_bits, page_bits = (longest + 1).bit_length(), workload.pages.bit_length() + 1
    page_mask, use_shift = (1 << page_bits) - 1, depth_bits + page_bits
    deepest = (1 << depth_bits) - 1
    # The next use of a page in the cache, 0 for any other page; smaller is farther away.
    kept = [_NEVER] * workload.pages
    held = served = 0
    # The farthest and deepest first: (next use, depth from below, page), stale ones among them.
    heap: list[int] = []
    for request, nexts in zip(workload.requests, uses, strict=True):
        pages = request.pages
        asked = pages[: request.asked]
        served += next((n for n, page in enumerate(asked) if not kept[page]), len(asked))
        reached = True
        for depth, (page, use) in enumerate(zip(pages, nexts, strict=True)):
            before = kept[page]
            if use == _NEVER:
                if before:
                    kept[page] = _NEVER
                    held -= 1
                reached = False
                continue
            if not before:
                if not reached:
                    break
                if held >= room:
                    while heap and kept[heap[0] & page_mask] != heap[0] >> use_shift:
                        heappop(heap)
                    if not heap or heap[0] >> use_shift >= use:
                        break
                    kept[heappop(heap) & page_mask] = _NEVER
                    held -= 1
                held += 1
            kept[page] = use
            heappush(heap, (use << use_shift) | ((deepest - depth) << page_bits) | page)
        if len(heap) > 4 * held + 1024:
            heap = [one for one in heap if kept[one & page_mask] == one >> use_shift]
            heapify(heap)
    return served


START_NS = 1_700_000_000 * 10**9
"""When virtual time begins: later than the stamps of superseded pages."""
DAY_SECONDS = 86_400.0
POLICIES: Final = {"keep": Keep, "lru": Lru}
"""The policy of stores, and least recently used first to compare it with."""
QUEUED_PAGES = 64
"""Pages that wait for the disk, at most, where no page stays in memory."""
_UNITS = {"M": 1 << 20, "k": 1 << 10, "": 1}


class TierRoom(NamedTuple):
    """A budget: so many bytes, or as many as so many tokens take."""

    amount: int
    is_tokens: bool = False

    def __str__(self) -> str:
        if not self.is_tokens:
            return format_size(self.amount)
        unit = next(unit for unit, size in _UNITS.items() if self.amount % size == 0)
        return f"{self.amount // _UNITS[unit]}{unit} tokens"

    def pages(self, nbytes: int, block_size: int) -> int:
        """Return how many pages it has room for, headers of files aside."""
        return self.amount // block_size if self.is_tokens else self.amount // nbytes


class Setup(NamedTuple):
    """What is varied. `agents` is how many sessions run at a time, 0 for a trace without them."""

    agents: int
    hot: TierRoom
    cold: TierRoom
    policy: str
    write_policy: str


@dataclass(frozen=True, slots=True)
class Costs:
    """A token at the head of a prompt takes `1 / prefill` seconds, and twice as long `doubles`
    tokens deep, for attention grows with depth. The disk gives `read` bytes a second."""

    prefill: float = 1000.0
    doubles: int = 32_768
    read: float = 2e9

    def saved(self, tokens: int, cold_bytes: int) -> float:
        """Return the seconds that restoring a prompt's first tokens saves."""
        return (tokens + tokens**2 / (2 * self.doubles)) / self.prefill - cold_bytes / self.read


@dataclass(slots=True)
class Outcome:
    """What one set of tiers restored, and its costs. Tokens are those of prompts; `refused` pages
    found no room in memory, or the disk's was taken by others."""

    setup: Setup
    workload: Workload
    hot_bytes: int
    cold_bytes: int
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
        return self.tokens / (self.workload.tokens_in or 1)

    @property
    def optimum_share(self) -> float:
        return self.optimum_tokens / (self.workload.tokens_in or 1)

    @property
    def ratio(self) -> float:
        return self.tokens / self.optimum_tokens if self.optimum_tokens else 1.0

    @property
    def written_per_token(self) -> float:
        """Bytes, for each token of the prompts."""
        return self.written_bytes / (self.workload.tokens_in or 1)

    @property
    def saved_each_day(self) -> float | None:
        """Seconds in a day of such requests, None for a trace too short to say."""
        seconds = self.workload.seconds
        return self.saved_seconds / seconds * DAY_SECONDS if seconds >= 60 else None


class SimulatedMachine:
    """One machine's tiers in virtual time, whose writer writes at once."""

    def __init__(self, setup: Setup, workload: Workload, pages: SimulatedPages) -> None:
        nbytes, size = pages.nbytes, workload.block_size
        hot, cold = (room.pages(nbytes, size) for room in (setup.hot, setup.cold))
        self.room_pages = hot + cold
        self.hot_bytes = hot * nbytes if setup.hot.is_tokens else setup.hot.amount
        limit = room_for(cold, nbytes) if setup.cold.is_tokens else setup.cold.amount
        self.cold_bytes = limit if cold else 0
        self._clock = clock = VirtualClock(START_NS)
        none, policy = Departures(1), POLICIES[setup.policy]
        disk = VirtualCold(self.cold_bytes, clock=clock, departures=none, policy=policy)
        self.tiers = Tiers(
            hot_bytes=self.hot_bytes,
            # Without memory of its own a tier only passes on what goes to the disk.
            queue_bytes=self.hot_bytes or (QUEUED_PAGES * nbytes if cold else 0),
            policy=WRITE_POLICIES[setup.write_policy],
            clock=clock,
            cold=disk if cold else None,
            documents=lambda namespace: {},
            eviction=policy(None),
            departures=none,
            writer=DirectWriter,
        )
        self.replay = Replay(self.tiers, workload, pages)

    def serve(self, request: Request) -> Replayed:
        self._clock.set(START_NS + int(request.at * 1e9))
        if isinstance(self.tiers.writer, DirectWriter):
            self.tiers.writer.tick()
        return self.replay.serve(request)

    @property
    def written_bytes(self) -> int:
        return self.tiers.writer.usage().written_bytes if self.tiers.writer else 0


class Simulator:
    """Replays one workload with pages of one model."""

    def __init__(self, workload: Workload, token_bytes: int, costs: Costs) -> None:
        if not workload.references:
            raise SimulationError("no prompt of the trace has a complete page: nothing is kept")
        self._workload, self._costs = workload, costs
        self._pages = SimulatedPages(workload, token_bytes * workload.block_size)
        self._uses = next_uses(workload)

    def run(self, setup: Setup) -> Outcome:
        machine = SimulatedMachine(setup, self._workload, self._pages)
        outcome = Outcome(setup, self._workload, machine.hot_bytes, machine.cold_bytes)
        with uncollected():
            for request in self._workload.requests:
                served = machine.serve(request)
                outcome.hot_tokens += served.hot_tokens
                outcome.cold_tokens += served.cold_tokens
                outcome.read_bytes += served.cold_bytes
                outcome.refused_pages += served.refused_pages
                outcome.saved_seconds += self._costs.saved(served.tokens, served.cold_bytes)
        outcome.evicted_pages = machine.tiers.hot.usage().evicted_pages
        if machine.tiers.cold is not None:
            outcome.written_bytes = machine.written_bytes
            outcome.cold_refused_pages = machine.tiers.cold.usage().refused_pages
            outcome.cold_evicted_pages = machine.tiers.cold.usage().evicted_pages
        pages = optimum(self._workload, machine.room_pages, self._uses)
        outcome.optimum_tokens = pages * self._workload.block_size
        return outcome
