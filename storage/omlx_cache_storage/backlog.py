"""Write policies, the backlog (pages that they want on the disk by now, by the clock), and
flushing: until the disk has what memory held, however much others store meanwhile."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from omlx_cache_storage.eviction.keep import Clock
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import PageId, PageMeta
from omlx_cache_storage.writer import Writer


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """When a page that memory has goes to the disk.

    `at_once`: when it is stored, and when it is used again; else when memory is to evict it, and
    not at all once a longer page has replaced it. `idle_seconds`: when nothing was stored or used
    for so long and the writer is idle, what is left is queued. `delay_seconds`: so long after it
    was stored a page is queued at the latest.
    """

    at_once: bool
    idle_seconds: float
    delay_seconds: float = inf


WRITE_POLICIES: Final = MappingProxyType(
    {
        "through": WritePolicy(at_once=True, idle_seconds=0.0),
        # After a minute without requests writing disturbs nobody; a kill costs five minutes.
        "lazy": WritePolicy(at_once=False, idle_seconds=60.0, delay_seconds=300.0),
    }
)
DIRTY_SHARE = 0.9
"""With `lazy`: the share of the hot tier that pages which the disk lacks may take before the oldest
of them are queued."""
GENERATIONS = 16
"""Pages that are stored within this part of the delay become due together."""
_SECOND = 1_000_000_000


class Generation(NamedTuple):
    """Pages in the order in which they were stored, the first of them at `begun_ns`."""

    begun_ns: int
    pages: list[PageId]


class Backlog:
    """Knows what was stored when, for as long as the delay. Asks the injected clock only, so that a
    simulation has its own time. Any thread may call.

    Of what `hot` has it names pages that the disk lacks. Who asks `due` does so at least every
    `ahead_seconds`: pages are named so much before their time. `_lock` guards `_generations`,
    `_overdue` and `_active_ns`, when something was stored or used last.
    """

    def __init__(
        self,
        policy: WritePolicy,
        clock: Clock,
        hot: HotTier,
        ahead_seconds: float = 0.0,
    ) -> None:
        self._clock = clock
        self._hot = hot
        self._superseded = policy.at_once
        self._delays = policy.delay_seconds != inf
        self._idle_ns = round(policy.idle_seconds * _SECOND)
        self._delay_ns = round(policy.delay_seconds * _SECOND) if self._delays else 0
        self._ahead_ns = round(ahead_seconds * _SECOND)
        self._lock = threading.Lock()
        self._generations: deque[Generation] = deque()
        self._overdue: list[PageId] = []
        self._active_ns = clock.elapsed_ns()

    def stored(self, page: PageId) -> None:
        """Note that memory has a page now which the disk lacks."""
        if not self._delays and not self._idle_ns:
            return
        now = self._clock.elapsed_ns()
        with self._lock:
            self._active_ns = now
            if not self._delays:
                return
            young = self._generations[-1] if self._generations else None
            if young is None or now - young.begun_ns > self._delay_ns // GENERATIONS:
                self._generations.append(Generation(now, [page]))
            else:
                young.pages.append(page)

    def used(self) -> None:
        """Note that pages are used now: the store is not idle."""
        if self._idle_ns:
            now = self._clock.elapsed_ns()
            with self._lock:
                self._active_ns = now

    def due(self) -> Sequence[PageId]:
        """Return what is to be written by now, in the order in which it should be; what stays
        unwritten is named again the next time."""
        now = self._clock.elapsed_ns()
        with self._lock:
            idle = now - self._active_ns >= self._idle_ns
            overdue, self._overdue = self._overdue, []
            while self._generations and self._is_over(self._generations[0], now):
                overdue += self._generations.popleft().pages
        if overdue:
            # Another lock than this one's: memory is not asked under both.
            overdue = self._hot.unwritten(overdue)
            with self._lock:
                self._overdue = overdue + self._overdue
        return unwritten(self._hot, superseded=self._superseded) if idle else overdue

    def _is_over(self, generation: Generation, now: int) -> bool:
        return now + self._ahead_ns - generation.begun_ns >= self._delay_ns


def rooted(pages: Iterable[PageId], lacking: Callable[[PageId], PageMeta | None]) -> list[PageId]:
    """Return pages, before each those of its chain that lead to it and that the disk lacks too;
    each page once.

    `lacking` describes a page of memory that the disk lacks, None for any other: what leads to a
    page that the disk has is there as well, and looked at no further.
    """
    found: dict[PageId, None] = {}
    for page in pages:
        line = []
        at = page
        while at not in found and (meta := lacking(at)) is not None:
            line.append(at)
            at = meta.before
        found.update(dict.fromkeys(reversed(line)))
    return list(found)


STARVED_ROUNDS = 32
"""How often a flush finds the queue full of what others offer, and none of its own pages taken,
before it gives up: without a deadline it would go on for as long as they do."""


def flush(
    hot: HotTier,
    writer: Writer,
    known: Collection[PageId],
    timeout: float | None,
) -> bool:
    """Block until the disk has what was queued and what it lacks of `known` pages; False after
    `timeout` seconds, when the disk refused a page, or when others keep the queue full."""
    deadline = None if timeout is None else time.monotonic() + timeout
    retried = False
    starved, fewest = 0, len(known) + 1
    while True:
        # Queued before the barrier: a page that the idle writer takes up behind it would
        # look durable, and be pending.
        queued = writer.offer_each(unwritten(hot, known))
        setbacks = writer.setbacks
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not writer.flush(remaining):
            return False
        failing = writer.setbacks > setbacks
        left = unwritten(hot, known)
        if failing and (retried or not left):
            return False
        pending = _pending(hot, known)
        if writer.stopped or (queued and not left and not pending):
            return not left
        retried = retried or failing
        starved = starved + 1 if len(left) + pending >= fewest else 0
        if starved >= STARVED_ROUNDS:
            return False
        fewest = min(fewest, len(left) + pending)


def unwritten(
    hot: HotTier,
    known: Collection[PageId] | None = None,
    *,
    superseded: bool = True,
) -> list[PageId]:
    """Return pages, of `known` ones, that the disk lacks, root first; without `superseded` only
    those that are to be kept."""
    named = hot.dirty(superseded=superseded)
    return [page for page in reversed(named) if known is None or page in known]


def _pending(hot: HotTier, known: Collection[PageId]) -> int:
    """Count the pages of `known` ones that are queued: the disk lost them while the flush
    waited."""
    infos = (hot.info(page) for page in known)
    return sum(info is not None and info.tier == "pending" for info in infos)
