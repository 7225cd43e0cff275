"""Workloads that a policy which learns could be wrong about, drawn from a seed. A request is a
conversation's whole prompt; pages are of one size."""

import random
from collections.abc import Callable, Hashable, Iterable

from omlx_cache.simulate.traces import Request, Workload

BLOCK = 16
Ask = tuple[float, Hashable, int]
"""When, which conversation, and how many pages of it."""


def workload(asked: Iterable[Ask], *, shared: int = 0, answers: int = 0) -> Workload:
    """Return requests in the order of time; the first `shared` pages are the same for all, and
    `answers` pages follow each prompt."""
    numbers: dict[Hashable, int] = {}
    requests = []
    for at, who, count in sorted(asked, key=lambda ask: ask[0]):
        whole = range(count + answers)
        names = ((None if depth < shared else who, depth) for depth in whole)
        pages = [numbers.setdefault(name, len(numbers)) for name in names]
        requests.append(Request(at, pages, count, count * BLOCK + 1))
    return Workload(requests, len(numbers), BLOCK)


def scan() -> Workload:
    """Nothing ever comes again."""
    return workload((1.0 * n, n, 10) for n in range(500))


def loop(conversations: int, gap: float, size: int = 10, requests: int = 900) -> Workload:
    """Conversations take turns."""
    return workload((n * gap, n % conversations, size) for n in range(requests))


def bursts() -> Workload:
    """Every minute or so up to eleven conversations begin together, and end after a few turns."""
    draw = random.Random(5)
    asked: list[Ask] = []
    now = 0.0
    for burst in range(50):
        now += draw.expovariate(1 / 60)
        for one in range(draw.randrange(1, 12)):
            turns = draw.randrange(1, 6)
            asked += [
                (now + turn * draw.uniform(0.5, 3), (burst, one), 10 + 5 * turn)
                for turn in range(turns)
            ]
    return workload(asked)


def once_more() -> Workload:
    """Each conversation is asked once more after three seconds, and never again."""
    return workload(ask for n in range(400) for ask in ((1.0 * n, n, 10), (1.0 * n + 3.1, n, 10)))


def phases() -> Workload:
    """Ten conversations that come back after 3 seconds, and thirty that do after 45, in turn, five
    minutes each."""
    asked: list[Ask] = []
    now = 0.0
    while len(asked) < 1400:
        phase = int(now // 300)
        for one in range(10 if phase % 2 == 0 else 30):
            asked.append((now, (phase, one), 8))
            now += 0.3 if phase % 2 == 0 else 1.5
    return workload(asked)


def another_talk() -> Workload:
    """One conversation every twenty minutes for long; after it another one every minute."""
    asked: list[Ask] = [(1200.0 * n, "a", 40) for n in range(100)]
    asked += [(1200.0 * 99 + 60 * n, "b", 40) for n in range(1, 101)]
    return workload(asked)


def agents(count: int = 10, sessions: int = 25, seed: int = 3, requests: int = 30) -> Workload:
    """Coding agents, `count` at a time: each comes back after 8 to 40 seconds with a longer prompt;
    all share a system prompt."""
    draw = random.Random(seed)
    free = [draw.uniform(0, 60) for _ in range(count)]
    asked: list[Ask] = []
    for session in range(sessions):
        place = min(range(count), key=free.__getitem__)
        now, size = free[place], 12
        for _ in range(draw.randint(requests // 2, requests)):
            asked.append((now, session, size))
            now += min(40.0, 8 + draw.lognormvariate(2.2, 0.6))
            size += draw.randint(1, 3)
        free[place] = now + 60
    return workload(asked, shared=8, answers=1)


ADVERSARIES: dict[str, tuple[Callable[[], Workload], tuple[int, ...]]] = {
    "scan": (scan, (100,)),
    "bursts": (bursts, (100, 300)),
    "once more": (once_more, (30, 60)),
    "phases": (phases, (50, 80, 250)),
    "loop just too large": (lambda: loop(11, 1.0), (100,)),
    "loop of short gaps": (lambda: loop(30, 0.2), (100,)),
    "loop of seconds": (lambda: loop(30, 1.0), (100, 200)),
    "loop of minutes": (lambda: loop(30, 5.0), (200,)),
    "loop of a quarter of an hour": (lambda: loop(30, 30.0), (100,)),
}
"""By name, with rooms in pages that are too small for some."""
