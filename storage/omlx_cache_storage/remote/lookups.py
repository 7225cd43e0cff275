"""Look-ups: what a remote store has of a chain, in at most three sequential phases, on threads of
their own that requests wait for no longer than until a deadline.

A chain is written root first. An engine that answers any number of names in one round trip (Redis)
is asked for all blocks at once; one that takes a request for each name (object stores) for evenly
spread blocks, then for those in the gap where the chain ends, and what lies before a block that is
there is taken to be there too: if it is not, the read is a miss. Then other groups and tails near
where the blocks end are asked for, and those before only where that costs little, and some are
missing.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.interrupts import done_within, uninterrupted
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import REMOTE, PageId, PageInfo, Placed
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.envelope import Envelope, TailMember, parse_tails
from omlx_cache_storage.remote.knowledge import RemoteStore

THREADS = 4
"""More than the failures in a row after which nobody asks: all of them may hang."""
MOST_IN_FLIGHT = 256
DEEP = 64
"""Boundaries before the deepest block of which all is asked at once; of those before only where
something is missing there. A server answers some hundred thousand names a second, for everybody."""
NEAR = 2
"""Boundaries up to the deepest block whose tails are asked for where each costs a request."""


class Inquiry(NamedTuple):
    """A chain and what a remote tier is to say of it.

    `keys` are its boundaries from the namespace (of no block) on: `keys[n]` is the key of the first
    n blocks. `paged` is the group of which every block is needed, None for a model without one; the
    first `known` blocks of it are to be had here. `others` are the other groups: a window's with
    the blocks that it reaches back, a state's with 0. `length` is the prompt's, in tokens, and
    `key` gives the key of a prefix of any length up to that. `firsts` are pages of the other groups
    that are needed wherever a prefix ends.
    """

    namespace: BlockKey
    block_size: int
    keys: Sequence[BlockKey]
    paged: str | None
    known: int
    others: Mapping[str, int]
    length: int
    key: Callable[[int], BlockKey]
    firsts: Sequence[PageId] = ()


class Asked(NamedTuple):
    """What came of an inquiry: whether pages are known now that were not, and in a word why not
    everything was found out, "" when it was."""

    news: bool
    trouble: str = ""


@dataclass(slots=True)
class _LookupInFlight:
    """A look-up, since when, and whether somebody was told that it is late."""

    future: "Future[Asked]"
    began: float
    late: bool = False


class Lookups:
    """Runs `answer(inquiry)` on at most `THREADS` threads, which may hang; the same inquiry in
    flight is joined. Any thread may call.

    `late` is told once of each look-up that somebody waited for and that took longer than
    `lookup_seconds`. `_lock` guards what is added to `_in_flight`.
    """

    def __init__(
        self, answer: Callable[[Inquiry], Asked], lookup_seconds: float, late: Callable[[], None]
    ) -> None:
        self._answer = answer
        self._lookup_seconds = lookup_seconds
        self._late = late
        self._lock = threading.Lock()
        self._in_flight: dict[object, _LookupInFlight] = {}
        self._pool = ReaderPool(THREADS, "omlx-cache-remote-ask")

    @uninterrupted
    def ask(self, inquiry: Inquiry, timeout: float | None) -> Asked:
        """Return what came of it, waiting at most `timeout` seconds and no longer than until
        `lookup_seconds` after it began. It goes on, and what it finds becomes known."""
        groups, end = (inquiry.paged, *inquiry.others), inquiry.key(inquiry.length)
        same = (inquiry.namespace, inquiry.keys[-1], inquiry.known, groups, inquiry.length, end)
        with self._lock:
            found = self._in_flight.get(same)
            if found is None:
                if len(self._in_flight) >= MOST_IN_FLIGHT:
                    return Asked(False, reasons.TIMEOUT)
                try:
                    future = self._pool.submit(self._answer, inquiry)
                except RuntimeError:
                    return Asked(False, reasons.UNREACHABLE)
                found = self._in_flight[same] = _LookupInFlight(future, time.monotonic())
                future.add_done_callback(lambda _: self._in_flight.pop(same, None))
        left = found.began + self._lookup_seconds - time.monotonic()
        seconds = max(0.0, left if timeout is None else min(left, timeout))
        if done_within(found.future, seconds):
            if found.future.cancelled():
                return Asked(False, reasons.UNREACHABLE)
            return found.future.result(0)
        if timeout == 0:
            return Asked(False)
        if left <= seconds:
            with self._lock:
                told, found.late = found.late, True
            if not told:
                self._late()
        return Asked(False, reasons.TIMEOUT)

    def close(self, timeout: float) -> bool:
        """Begin no more, and wake who waits; False when one hangs for longer."""
        return self._pool.stop(timeout)


class Asking:
    """One inquiry in flight. Used by one thread; what it finds becomes known at once.

    `phases` followed each other; `asked` names were asked for, and `found` of them were there;
    `news` says that pages are known now that were not; `trouble` is the word for values that are
    another secret's.
    """

    def __init__(self, store: RemoteStore, inquiry: Inquiry) -> None:
        self._store, self._known = store, store.known
        self._inquiry = inquiry
        self.phases = self.asked = self.found = 0
        self.news = False
        self.trouble = ""

    def run(self) -> None:
        """Ask; raises RemoteError."""
        others, together = self._inquiry.others, self._store.engine.asks_together
        blocks = len(self._inquiry.keys) - 1
        is_cheap = together >= blocks * (1 + len(others))
        deepest = blocks if self._inquiry.paged is None else self._deepest(blocks, together)
        window = max(others.values(), default=0)
        reach = DEEP + window if is_cheap else max(NEAR, window, together)
        first = max(1, deepest - reach)
        near = first - 1 if is_cheap and others else deepest - NEAR
        self._ask(self._others(first, deepest), self._parents(near, deepest))
        if is_cheap and first > 1 and not self._has_all_others(first, deepest):
            self._ask(self._others(1, first - 1), self._parents(0, first - 1))

    def _deepest(self, blocks: int, together: int) -> int:
        """Return how many blocks are there without a gap."""
        low, high = self._inquiry.known, blocks + 1
        for _phase in range(2):
            probes = spread(low, high, together)
            self._ask(self._paged(probes))
            infos = self._known.find_all(self._paged(probes))
            low = max([low, *(n for n, info in zip(probes, infos, strict=True) if info)])
            high = min([high, *(n for n in probes if n > low)])
        self._assume(low)
        deepest = self._inquiry.known
        for info in self._known.find_all(self._paged(range(deepest + 1, low + 1))):
            if info is None:
                break
            deepest += 1
        return deepest

    def _assume(self, deepest: int) -> None:
        """Take the blocks before the deepest one to be there, as large as it; but those that were
        found to be absent, or bad, lately."""
        known, size = self._inquiry.known, self._inquiry.block_size
        (like,) = self._known.find_all(self._paged([deepest]))
        if deepest <= known or like is None:
            return
        between = self._paged(range(known + 1, deepest))
        unknown = set(self._known.unknown(between))
        self._note(
            [
                (page, PageInfo(n * size, size, like.nbytes, REMOTE), 0)
                for n, page in enumerate(between, known + 1)
                if page in unknown and not self._known.is_shunned(page)
            ]
        )

    def _paged(self, blocks: Iterable[int]) -> list[PageId]:
        group, keys = self._inquiry.paged or "", self._inquiry.keys
        return [PageId(keys[n], group) for n in blocks]

    def _others(self, first: int, last: int) -> list[PageId]:
        keys, firsts = self._inquiry.keys[first : last + 1], self._inquiry.firsts
        found = [PageId(key, group) for key in keys for group in self._inquiry.others]
        return list(dict.fromkeys((*firsts, *found)))

    def _parents(self, first: int, last: int) -> Sequence[BlockKey]:
        return self._inquiry.keys[max(0, first) : last + 1]

    def _has_all_others(self, first: int, deepest: int) -> bool:
        """Return whether every other group has something at these boundaries: what lies before
        would make a shorter prefix."""
        keys = self._inquiry.keys[first : deepest + 1]
        within = {tail.group for tail in self._known.tails_of(keys)}
        return all(
            group in within or any(self._known.find_all([PageId(key, group) for key in keys]))
            for group in self._inquiry.others
        )

    def _ask(self, of_pages: Sequence[PageId], of_parents: Sequence[BlockKey] = ()) -> None:
        """Ask one phase, of what is not known: blocks and tails at once where the engine can."""
        pages, parents = self._known.unknown(of_pages), []
        for parent in of_parents:
            members = self._known.members_of(parent)
            if members is None:
                parents.append(parent)
            else:
                # It may have been another prompt for which they were asked.
                self._note_own(members)
        if not pages and not parents:
            return
        self.phases += 1
        self.asked += len(pages) + len(parents)
        namespace = self._inquiry.namespace
        sets = [self._store.names.tails(namespace, parent) for parent in parents]
        said, members_of = self._store.look([Placed(namespace, page) for page in pages], sets)
        found = sum(isinstance(one, Envelope) for one in said)
        self.found += found
        self.news |= found > 0
        if any(isinstance(one, ForeignPage) for one in said):
            self.trouble = reasons.FOREIGN
        groups = {self._inquiry.paged, *self._inquiry.others}
        size = self._inquiry.block_size
        for parent, texts in zip(parents, members_of, strict=True):
            start = self._inquiry.keys.index(parent) * size
            tails = [
                tail
                for tail in parse_tails(texts)
                if tail.group in groups and start < tail.position < start + size
            ]
            self._known.note_tails(parent, tails)
            self._note_own(tails)

    def _note_own(self, members: Iterable[TailMember]) -> None:
        """Know those tails that this prompt has: others may end at the same place."""
        found = []
        for tail in members:
            if tail.position > self._inquiry.length:
                continue
            page = PageId(self._inquiry.key(tail.position), tail.group)
            if page.key == tail.key and not self._known.is_shunned(page):
                info = PageInfo(tail.position, tail.held, tail.nbytes, REMOTE)
                found.append((page, info, tail.wire_bytes))
        self._note(found)

    def _note(self, found: Sequence[tuple[PageId, PageInfo, int]]) -> None:
        self.news |= bool(self._known.note(self._inquiry.namespace, found))


def spread(low: int, high: int, most: int) -> list[int]:
    """Return at most `most` numbers between `low` and `high`, both left out, evenly spread; they
    cut what lies between into stretches as short as can be."""
    if high - low - 1 <= most:
        return list(range(low + 1, high))
    step = (high - low) / (most + 1)
    return sorted({low + round(step * n) for n in range(1, most + 1)} - {low, high})
