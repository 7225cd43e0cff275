"""Agents in tool loops and people who finish turns, in a hot tier of too little room, in virtual
time."""

import hashlib
import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from omlx_cache.simulate.tiers import VirtualClock
from omlx_cache_storage.eviction.keep import Clock, Keep
from omlx_cache_storage.hints import Ended
from omlx_cache_storage.hot_page import WRITE_POLICIES
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageMeta, TensorSpec
from omlx_cache_storage.tiers import Tiers

BLOCK = 256
SECOND = 1_000_000_000
NAMESPACE = BlockKey(bytes(32))


START_NS = 1_000_000 * SECOND


class Asked(NamedTuple):
    """One request: when, whose, the blocks of its prompt, and of its prompt and answer."""

    seconds: float
    who: str
    blocks: list[str]
    whole: list[str]
    ended: Ended


@dataclass
class Actor:
    """An agent, or a person, with one conversation at a time."""

    name: str
    agent: bool
    chosen: random.Random
    steps: int = 0
    conversation: int = 0
    blocks: int = 0
    left: int = 0

    def ask(self, now: float) -> tuple[Asked, float]:
        """Return the next request, and when the one after it comes."""
        chosen = self.chosen
        if not self.left:
            self.left = chosen.randint(10, 40) if self.agent else chosen.randint(3, 10)
            if not self.agent or chosen.random() < 0.5 or self.blocks > 120:
                self.conversation, self.blocks = self.conversation + 1, 0
        shared = 12 if self.agent else 3
        kind = "agents" if self.agent else "people"
        names = [f"{kind}:{at}" for at in range(shared)]
        self.blocks += chosen.randint(1, 4)
        prompt = [*names, *self._own(self.blocks)]
        self.blocks += chosen.randint(0, 2)
        self.left -= 1
        goes_on = self.agent and self.left > 0
        ended: Ended = "tool_call" if goes_on else "turn"
        pause = 5 + chosen.lognormvariate(2.5, 0.5) if goes_on else chosen.lognormvariate(5.5, 0.8)
        whole = [*names, *self._own(self.blocks)]
        return Asked(now, self.name, prompt, whole, ended), now + pause

    def _own(self, count: int) -> list[str]:
        return [f"{self.name}:{self.conversation}:{at}" for at in range(count)]


def mix(agents: int, people: int, hours: float, seed: int) -> Iterator[Asked]:
    """Yield requests in the order of their time."""
    actors = [Actor(f"agent {n}", True, random.Random(f"{seed} agent {n}")) for n in range(agents)]
    actors += [
        Actor(f"person {n}", False, random.Random(f"{seed} person {n}")) for n in range(people)
    ]
    due = [(actor.chosen.uniform(0, 300), n, actor) for n, actor in enumerate(actors)]
    heapq.heapify(due)
    while due[0][0] < hours * 3600:
        now, n, actor = heapq.heappop(due)
        asked, then = actor.ask(now)
        yield asked
        heapq.heappush(due, (then, n, actor))


class Served(NamedTuple):
    """Tokens that were asked for, and those of them that were restored, for agents and people."""

    agents: tuple[int, int]
    people: tuple[int, int]

    @property
    def share(self) -> float:
        return (self.agents[1] + self.people[1]) / (self.agents[0] + self.people[0])


def replay(requests: Iterator[Asked], room: int, *, hints: bool) -> Served:
    """Serve requests from a tier that holds `room` blocks, told how they ended or not."""
    clock = VirtualClock(START_NS)
    tiers = tiers_of(room, clock)
    totals = {"agent": [0, 0], "person": [0, 0]}
    for asked in requests:
        clock.set(START_NS + int(asked.seconds * SECOND))
        total = totals[asked.who.partition(" ")[0]]
        total[0] += len(asked.blocks) * BLOCK
        total[1] += _serve(tiers, asked, asked.ended if hints else None) * BLOCK
    tiers.hot.check_integrity()
    agents, people = (tuple(totals[kind]) for kind in ("agent", "person"))
    return Served((agents[0], agents[1]), (people[0], people[1]))


def tiers_of(room: int, clock: Clock) -> Tiers:
    """Return a hot tier alone, that learns for how long pages are worth their place."""
    return Tiers(
        hot_bytes=room * BLOCK,
        queue_bytes=BLOCK,
        policy=WRITE_POLICIES["through"],
        clock=clock,
        cold=None,
        documents=lambda digest: {},
        eviction=Keep(),
    )


def _serve(tiers: Tiers, asked: Asked, ended: Ended | None) -> int:
    """Return how many blocks were restored; the calls are those of a session."""
    named = zip(asked.whole, ["", *asked.whole], range(len(asked.whole)), strict=False)
    pages = [_page(*one) for one in named]
    ids = [page.meta.id for page in pages]
    found = tiers.find_all(ids[: len(asked.blocks)])
    restored = next((at for at, known in enumerate(found) if known is None), len(found))
    began = tiers.stamp()
    if restored:
        tiers.touch(ids[:restored], began)
    own, stored = set(ids[:restored]), []
    for at, page in enumerate(pages[restored:], restored):
        if tiers.find(page.meta.id) is None:
            room = tiers.admit(BLOCK, own, position=page.meta.position)
            if not room:
                tiers.refuse(ids[at:], began)
                break
            tiers.put(page, room, began, began_ns=began)
            stored.append(page.meta.id)
        own.add(page.meta.id)
    stamp = tiers.stamp(ended=ended)
    tiers.reorder(ids, stored, stamp, began)
    return restored


def _key(name: str) -> BlockKey:
    return BlockKey(hashlib.sha256(name.encode()).digest())


@cache
def _page(name: str, before: str, at: int) -> Page:
    meta = PageMeta(
        namespace=NAMESPACE,
        key=_key(name),
        parent=_key(before) if before else NAMESPACE,
        group="paged",
        position=(at + 1) * BLOCK,
        held=BLOCK,
        tail=False,
        codec="dense",
        tensors=(TensorSpec("0", "U8", (BLOCK,)),),
    )
    return Page(meta, b"")
