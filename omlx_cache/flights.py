"""Prompts in flight, so that no request computes the same tokens beside another: it waits in its
scheduler's queue, and restores them. Prompts are compared token by token, within one namespace:
never across salts."""

import threading
import time
import weakref
from collections.abc import Iterable
from typing import Protocol

from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, shared_length

STALLED_SECONDS = 120.0
"""A flight without progress for so long is not waited for."""
WAIT_SECONDS = 600.0
"""The longest wait of a request in its queue for blocks that others compute: a prompt of a million
tokens takes about as long."""
REFUSALS = 2
"""After so many chunks in a row whose blocks found no room it is not waited for either. One alone
is often made good by the next."""
POLL_SECONDS = 1.0
"""How often a waiting request checks whether a flight has stalled."""


class Waiter(Protocol):
    """A request in a queue. `found` tokens of its prompt can be restored by now. The flights' lock
    guards `has_news`: since its latest lookup a flight has computed tokens that may take it a block
    or more beyond."""

    found: int
    has_news: bool


class PromptFlight:
    """A prompt whose tokens from `start` on are computed by one request.

    `stops` are where windows and recurrent state will be kept, None when the prompt can be restored
    at any block. Its owner asks for `take_wanted` before each chunk, and stops there too; it ends
    when its owner says so, or loses it. Any thread may call; the flights' lock guards everything
    mutable but `number`, its request's, which the owner sets once.
    """

    def __init__(
        self, flights: "Flights", chain: KeyChain, start: int, stops: Iterable[int] | None
    ) -> None:
        self.number: int | None = None
        self._flights = flights
        self.namespace: BlockKey = chain.namespace
        # A chain may grow on its own thread; this part of it never changes.
        self.tokens = chain.tokens
        self._size = chain.block_size
        self._stops = None if stops is None else set(stops)
        self._wanted: list[int] = []
        self._reached = start
        self._refusals = 0
        self._moved = time.monotonic()
        self.thread = threading.get_ident()

    def reach(self, position: int, *, refused: bool = False) -> None:
        """Note that the first `position` tokens were computed and handed over; `refused` when
        complete blocks of them found no room."""
        with self._flights.lock:
            if position > self._reached:
                self._reached = position
                self._refusals = self._refusals + 1 if refused else 0
                self._moved = time.monotonic()
                for waiter, chain in self._flights.waiters.items():
                    if chain.namespace == self.namespace:
                        shared = shared_length(self.tokens, _restorable(chain))
                        computed = self._point(min(shared, position))
                        waiter.has_news |= computed >= waiter.found + self._size
                self._flights.changed()

    def add_stops(self, positions: Iterable[int]) -> None:
        with self._flights.lock:
            if self._stops is not None:
                self._stops.update(positions)

    def end(self) -> None:
        with self._flights.lock:
            self._flights.live.pop(self, None)
            self._flights.changed()

    def take_wanted(self) -> list[int]:
        """Return where others part from this prompt and want a restore point, each once."""
        with self._flights.lock:
            wanted, self._wanted = self._wanted, []
            return wanted

    def goal(self, tokens: Tokens) -> int:
        """Return how far a prompt could be restored when this one has passed; the lock is held."""
        shared = shared_length(self.tokens, tokens)
        is_kept = self._stops is not None and shared > self._reached
        return shared if is_kept else self._point(shared)

    def _point(self, most: int) -> int:
        """Return the last place among the first `most` tokens that can be restored."""
        if self._stops is None:
            return most // self._size * self._size
        return max((stop for stop in self._stops if stop <= most), default=0)

    def is_ahead(self, goal: int) -> bool:
        """True while it is worth waiting for it to get there; the lock is held."""
        is_going = time.monotonic() - self._moved < STALLED_SECONDS
        return is_going and self._refusals < REFUSALS and self._reached < goal

    def want(self, position: int) -> None:
        """Ask for a restore point at a position; the lock is held."""
        if self._stops is not None and position not in self._stops:
            self._stops.add(position)
            self._wanted.append(position)


class Flights:
    """The prompts that are being computed in this process. Any thread may call.

    `lock`, held over no I/O, guards the `live` ones, the earliest first, and `changes`, which grows
    with whatever their owners say. A lost flight leaves `live` without a lock, as a finalizer may
    run while any is held. `waiters`, each with its keys, are in a queue, for `wait_seconds` in all
    at most.
    """

    def __init__(self) -> None:
        self.wait_seconds = WAIT_SECONDS
        self.lock = threading.Lock()
        self.on_change = threading.Condition(self.lock)
        self.changes = 0
        self.live: weakref.WeakKeyDictionary[PromptFlight, None] = weakref.WeakKeyDictionary()
        self.waiters: weakref.WeakKeyDictionary[Waiter, KeyChain] = weakref.WeakKeyDictionary()

    def begin(
        self, chain: KeyChain, start: int, stops: Iterable[int] | None = None
    ) -> PromptFlight:
        """Note a prompt that is about to be computed from `start` on; it keeps restore points for
        requests in a queue."""
        flight = PromptFlight(self, chain, start, stops)
        with self.lock:
            self.live[flight] = None
            self.changed()
            for waiter, other in self.waiters.items():
                if other.namespace == chain.namespace:
                    goal = flight.goal(_restorable(other))
                    if goal > start and goal >= waiter.found + chain.block_size:
                        flight.want(goal)
        return flight

    @property
    def state(self) -> tuple[int, int, int]:
        """A value that changes when something happened to a flight, when one was lost, and after a
        while: one may have stalled."""
        return self.changes, len(self.live), int(time.monotonic() / POLL_SECONDS)

    def changed(self) -> None:
        """Note that something happened to a flight; the lock is held."""
        self.changes += 1
        self.on_change.notify_all()

    def shared(self, chain: KeyChain) -> int:
        """Return how many of a prompt's tokens one in flight begins with."""
        with self.lock:
            alike = [one.tokens for one in self.live if one.namespace == chain.namespace]
        return max((shared_length(tokens, chain.tokens) for tokens in alike), default=0)

    def awaited(self, chain: KeyChain, found: int) -> PromptFlight | None:
        """Return the flight that takes a prompt furthest, None when none does by a block beyond the
        `found` tokens that can be restored now. That one then keeps a restore point where the two
        part."""
        tokens = _restorable(chain)
        best, furthest = None, found + chain.block_size - 1
        with self.lock:
            for flight in self.live:
                if flight.namespace == chain.namespace:
                    goal = flight.goal(tokens)
                    if goal > furthest and flight.is_ahead(goal):
                        best, furthest = flight, goal
            if best is not None:
                best.want(furthest)
        return best


def _restorable(chain: KeyChain) -> Tokens:
    """Return the tokens that a restore may bring: the last one is always computed."""
    return chain.tokens[: max(0, len(chain) - 1)]
