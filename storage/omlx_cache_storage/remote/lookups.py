"""Lookups: find a remote store's pages of a chain, in at most three sequential phases, on threads
of their own.

An engine that answers any number of names in one round trip (Redis) is asked for all blocks at
once. One that takes a request for each name (object stores) is asked for evenly spread blocks, then
for blocks in the gap where the chain ends: it is written root first. A block before one that is
there is taken to be there too: if it is not, the read is a miss. Then other groups and tails up to
the last block are asked for, or near it, where each costs a request.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

from omlx_cache_storage import errors
from omlx_cache_storage.calls import done_within, uninterrupted
from omlx_cache_storage.io_threads import ReaderPool
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import REMOTE, PageId, PageInfo, Placed, Tail
from omlx_cache_storage.remote.engine import known_error
from omlx_cache_storage.remote.envelope import TAILS, parse_tails
from omlx_cache_storage.remote.store import RemoteStore

THREADS = 4
"""More than the failures in a row after which the tier backs off: all of them may hang."""
MOST_IN_FLIGHT = 256
NEAR = 2
"""Boundaries up to the deepest block whose tails are asked for where each costs a request."""


class Inquiry(NamedTuple):
    """A chain, for a lookup by a remote tier.

    `keys[n]` is the key of the first n blocks, from the namespace on. `paged` is the group of which
    every block is needed, None for a model without one; the first `known` blocks of it are to be
    had here. `others` are the other groups: a window's with the blocks that it reaches back, a
    state's with 0. `length` is the prompt's, in tokens, and `key` gives the key of a prefix of any
    length up to that. `firsts` are pages of the other groups that are needed wherever a prefix
    ends.
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
    """Whether an inquiry found new pages, and a word for why it is incomplete, "" when it is
    complete."""

    news: bool
    trouble: str = ""


class Lookups:
    """Asks a store on at most `THREADS` threads, which may hang; the same inquiry in flight is
    joined. Any thread may call. `_lock` guards additions to `_in_flight`."""

    def __init__(self, store: RemoteStore, lookup_seconds: float) -> None:
        self._store = store
        self._lookup_seconds = lookup_seconds
        self._lock = threading.Lock()
        self._in_flight: dict[object, Future[Asked]] = {}
        self.pool = ReaderPool(THREADS, "omlx-cache-remote-ask")

    @uninterrupted
    def ask(self, inquiry: Inquiry, timeout: float | None) -> Asked:
        """Return the result, after `timeout` seconds and `lookup_seconds` at most. The inquiry goes
        on, and its findings become known."""
        groups, end = (inquiry.paged, *inquiry.others), inquiry.key(inquiry.length)
        same = (inquiry.namespace, inquiry.keys[-1], inquiry.known, groups, inquiry.length, end)
        with self._lock:
            future = self._in_flight.get(same)
            if future is None:
                if len(self._in_flight) >= MOST_IN_FLIGHT:
                    return Asked(False, errors.REMOTE_TIMEOUT)
                try:
                    future = self._in_flight[same] = self.pool.submit(self._answer, inquiry)
                except RuntimeError:
                    return Asked(False, errors.REMOTE_UNREACHABLE)
                future.add_done_callback(lambda _: self._in_flight.pop(same, None))
        seconds = self._lookup_seconds if timeout is None else min(self._lookup_seconds, timeout)
        try:
            if done_within(future, seconds):
                return future.result(0)
        except CancelledError:
            return Asked(False, errors.REMOTE_UNREACHABLE)
        if timeout == 0:
            return Asked(False)
        # Counted once; no later caller joins the inquiry.
        if seconds == self._lookup_seconds and self._in_flight.pop(same, None) is not None:
            self._store.note_late_lookup()
        return Asked(False, errors.REMOTE_TIMEOUT)

    def _answer(self, inquiry: Inquiry) -> Asked:
        asking, tally = Asking(self._store, inquiry), self._store.tally
        began = time.perf_counter()
        try:
            asking.run()
        except Exception as error:
            asking.trouble = errors.REMOTE_WORDS[known_error(error).reason]
            if asking.trouble == errors.REMOTE_RESTING:
                return Asked(False, asking.trouble)
        tally.add(
            lookups=1,
            lookup_phases=asking.phases,
            asked_pages=asking.asked,
            found_pages=asking.found,
        )
        if asking.phases and asking.trouble in ("", errors.REMOTE_FOREIGN):
            self._store.events.timings.observe("remote_lookup_seconds", time.perf_counter() - began)
        return Asked(asking.news, asking.trouble)


class Asking:
    """One inquiry in flight. Used by one thread; its findings become known at once.

    `phases` followed each other; of the `asked` names `found` were there. `news`: it found new
    pages; `trouble` is the word for values that are another secret's.
    """

    def __init__(self, store: RemoteStore, inquiry: Inquiry) -> None:
        self._store, self._known = store, store.known
        self._inquiry = inquiry
        self.phases = self.asked = self.found = 0
        self.news = False
        self.trouble = ""

    def run(self) -> None:
        others, together = self._inquiry.others, self._store.engine.asks_together
        blocks = len(self._inquiry.keys) - 1
        deepest = blocks if self._inquiry.paged is None else self._deepest(blocks, together)
        near, reach = NEAR, max(NEAR, together, *others.values())
        if others and together >= blocks * (1 + len(others)):
            near = reach = blocks
        self._ask(self._others(deepest - reach, deepest), self._tails(deepest - near, deepest))

    def _deepest(self, blocks: int, together: int) -> int:
        """Return how many blocks are there without a gap. A block before one that is there counts
        as there too, and as large; not one that was found absent, or bad, lately."""
        low, high = self._inquiry.known, blocks + 1
        for _phase in range(2):
            probes = spread(low, high, together)
            self._ask(map(self._paged, probes), {})
            there = [n for n in probes if self._known.seen(self._paged(n)) is not None]
            low = max(there, default=low)
            high = min((n for n in probes if n > low), default=high)
        deepest, size = self._known.seen(self._paged(low)), self._inquiry.block_size
        for n in range(self._inquiry.known + 1, low + 1):
            page = self._paged(n)
            if deepest is not None:
                self._known.assume(
                    self._inquiry.namespace,
                    page,
                    PageInfo(n * size, size, deepest.info.nbytes, REMOTE),
                )
            if self._known.seen(page) is None:
                return n - 1
            # Also where a lookup that ended since its asker had looked has found it.
            self.news = True
        return low

    def _paged(self, blocks: int) -> PageId:
        return PageId(self._inquiry.keys[blocks], self._inquiry.paged or "")

    def _others(self, first: int, last: int) -> list[PageId]:
        keys, firsts = self._inquiry.keys[max(1, first) : last + 1], self._inquiry.firsts
        found = [PageId(key, group) for key in keys for group in self._inquiry.others]
        return list(dict.fromkeys((*firsts, *found)))

    def _tails(self, first: int, last: int) -> dict[PageId, int]:
        size, first = self._inquiry.block_size, max(0, first)
        return {
            PageId(key, TAILS): n * size
            for n, key in enumerate(self._inquiry.keys[first : last + 1], first)
        }

    def _ask(self, of_pages: Iterable[PageId], of_sets: Mapping[PageId, int]) -> None:
        pages, sets = self._known.unknown(of_pages), self._known.unknown(of_sets)
        if not pages and not sets:
            return
        self.phases += 1
        self.asked += len(pages) + len(sets)
        namespace, size = self._inquiry.namespace, self._inquiry.block_size
        placed = ([Placed(namespace, one) for one in some] for some in (pages, sets))
        members_of = self._store.look(*placed)
        found = sum(info is not None for info in self._known.find_all(pages))
        self.found += found
        self.news |= found > 0
        if errors.REMOTE_FOREIGN in self._known.why_absent(pages).values():
            self.trouble = errors.REMOTE_FOREIGN
        groups = {self._inquiry.paged, *self._inquiry.others}
        for one, members in zip(sets, members_of, strict=True):
            for tail in parse_tails(members):
                if tail.group in groups and 0 < tail.position - of_sets[one] < size:
                    self._known.note_tails(one.key, [Tail(tail.position, tail.group)])
                    page = PageId(tail.key, tail.group)
                    info = PageInfo(tail.position, tail.held, tail.nbytes, REMOTE)
                    self.news |= self._known.assume(namespace, page, info)
        # Others add some at any time.
        self._known.note_absent(sets)


def spread(low: int, high: int, most: int) -> list[int]:
    if high - low - 1 <= most:
        return list(range(low + 1, high))
    step = (high - low) / (most + 1)
    return sorted({low + round(step * n) for n in range(1, most + 1)} - {low, high})
