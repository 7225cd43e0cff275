"""Sessions of coding agents: each begins when a place is free, and follows its own times from
there."""

import heapq
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

from omlx_cache.simulate.errors import SimulationError
from omlx_cache.simulate.requests import PageNumbers, Request, Workload, grouping

PAUSE_SECONDS = 60.0
"""How long a place stays free between two sessions."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A request, `at` seconds after its session began; `runs` are block numbers: first, count,
    first, count..."""

    at: float
    tokens_in: int
    tokens_out: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AgentSession:
    """A session of blocks of `block_tokens`, whose numbers are its own. Those with equal
    `tool_tokens` and `system_tokens` share that many leading tokens."""

    name: str
    block_tokens: int
    tool_tokens: int
    system_tokens: int
    requests: tuple[SessionRequest, ...]


def schedule(
    sessions: Sequence[AgentSession], *, agents: int, block_size: int, shuffle: str = ""
) -> Workload:
    """Return what `agents` at a time ask: sessions in their order, or in that of a named seed, each
    when a place is free."""
    ordered = list(sessions)
    if shuffle:
        random.Random(shuffle).shuffle(ordered)
    numbers = PageNumbers()
    free = [0.0] * agents
    heapq.heapify(free)
    requests: list[Request] = []
    for session in ordered:
        start = heapq.heappop(free)
        last = start
        pages = _Pages(session, block_size, numbers)
        for request in session.requests:
            at = start + request.at
            last = max(last, at)
            known = pages.of(request.runs)
            tokens = request.tokens_in, request.tokens_out
            requests.append(Request(at, known, len(known), *tokens, session=session.name))
        heapq.heappush(free, last + PAUSE_SECONDS)
    requests.sort(key=lambda request: request.at)
    return Workload(requests, len(numbers), block_size)


class _Pages:
    """Names the pages of one session's prompts."""

    def __init__(self, session: AgentSession, block_size: int, numbers: PageNumbers) -> None:
        how = grouping(session.block_tokens, block_size)
        if how is None or how.split > 1:
            raise SimulationError(
                f"pages of {block_size} tokens are not made of blocks of {session.block_tokens}: "
                f"give a multiple of {session.block_tokens} as --block-size"
            )
        self._joined = how.joined
        self._shared = (session.tool_tokens + session.system_tokens) // session.block_tokens
        self._common = (session.tool_tokens, session.system_tokens)
        self._name = session.name
        self._numbers = numbers

    def of(self, runs: Sequence[int]) -> list[int]:
        """Return the complete pages of a prompt."""
        spans = (range(a, a + n) for a, n in zip(runs[::2], runs[1::2], strict=True))
        blocks = list(chain.from_iterable(spans))
        joined, number = self._joined, self._numbers.of
        pages: list[int] = []
        parent = -1
        for start in range(0, len(blocks) - joined + 1, joined):
            what: Hashable
            if start + joined <= self._shared:
                what = (self._common, start)
            else:
                # Numbers say which prefix they follow, so that the ends of a page name it.
                what = (self._name, blocks[start], blocks[start + joined - 1], parent)
            parent = number(what)
            pages.append(parent)
        return pages
