"""Prompts in flight: what is being computed now, so that nobody computes the same beside it.

A request whose next blocks another one is computing waits for them in its scheduler's queue, and
restores them. Prompts are compared token by token, within one namespace: never across salts.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from omlx_cache_storage.interrupts import uninterrupted, wait_in_turns
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, shared_length

STALLED_SECONDS = 120.0
"""A flight without progress for so long is not waited for any more: nobody may be computing it."""
REFUSALS = 2
"""After so many chunks in a row whose blocks found no room it is not waited for either: there is
nothing to restore. One alone is often made good by the next."""
REMEMBERED = 16
"""How many that have ended are remembered, for those who did not look meanwhile."""


@dataclass(eq=False)
class Waiter:
    """A request in a queue: `found` tokens of its prompt can be restored by now."""

    chain: KeyChain
    found: int = 0


class Flight:
    """A prompt whose tokens from `start` on are computed by one request.

    `stops` are where windows and recurrent state will be kept, None when the prompt can be restored
    at any block. With `bends` its owner asks for `take_wanted` before each chunk, and stops there
    too. It belongs to the thread that began it. `reach` says how far it was computed and handed to
    the tiers, taken or refused. Any thread may call; the flights' lock guards everything mutable.
    """

    def __init__(
        self,
        flights: "Flights",
        chain: KeyChain,
        start: int,
        stops: Iterable[int] | None,
        *,
        bends: bool,
    ) -> None:
        self._flights = flights
        self.namespace: BlockKey = chain.namespace
        # A chain may grow on its own thread; this part of it never changes.
        self._tokens = chain.tokens
        self._size = chain.block_size
        self._stops = None if stops is None else set(stops)
        self._bends = bends
        self._wanted: list[int] = []
        self._reached = start
        self._refusals = 0
        self._moved = time.monotonic()
        self._ended = False
        self.thread = threading.get_ident()
        self.change = 0

    @uninterrupted
    def reach(self, position: int, *, refused: bool = False) -> None:
        """Say that the first `position` tokens were computed, and handed over as far as they go;
        `refused` when complete blocks of them found no room."""
        with self._flights.lock:
            if position > self._reached:
                self._reached = position
                self._refusals = self._refusals + 1 if refused else 0
                self._moved = time.monotonic()
                self._flights.moved(self)

    @uninterrupted
    def keep(self, positions: Iterable[int]) -> None:
        """Say that windows and recurrent state will be kept at more positions."""
        with self._flights.lock:
            if self._stops is not None:
                self._stops.update(positions)

    @uninterrupted
    def end(self) -> None:
        """Say that nothing more is computed; any number of times."""
        with self._flights.lock:
            if not self._ended:
                self._ended = True
                self._flights.forget(self)
                self._flights.moved(self)

    @uninterrupted
    def take_wanted(self) -> list[int]:
        """Return where others part from this prompt and want a restore point, each once."""
        with self._flights.lock:
            wanted, self._wanted = self._wanted, []
            return wanted

    def goal(self, tokens: Tokens) -> int:
        """Return how far a prompt could be restored when this one has passed; the lock is held."""
        shared = shared_length(self._tokens, tokens)
        if self._stops is not None and self._bends and shared > self._reached:
            return shared
        return self._point(shared)

    def shares(self, tokens: Tokens) -> int:
        """Return how many tokens this prompt has in common with another; the lock is held."""
        return shared_length(self._tokens, tokens)

    def computed(self, tokens: Tokens) -> int:
        """Return how far a prompt could be restored by now; the lock is held."""
        return self._point(min(shared_length(self._tokens, tokens), self._reached))

    def _point(self, most: int) -> int:
        """Return the last place among the first `most` tokens that can be restored."""
        if self._stops is None:
            return most // self._size * self._size
        return max((stop for stop in self._stops if stop <= most), default=0)

    def is_ahead(self, goal: int, now: float) -> bool:
        """True while it is worth waiting for it to get there; the lock is held."""
        going = now - self._moved < STALLED_SECONDS and self._refusals < REFUSALS
        return going and self._reached < goal

    def want(self, position: int) -> None:
        """Ask for a restore point at a position; the lock is held."""
        if self._stops is not None and position not in self._stops:
            self._stops.add(position)
            self._wanted.append(position)


class Flights:
    """The prompts that are being computed in this process. Any thread may call.

    `lock` guards them, those that `_ended` last, and `changes`, which grows with whatever happens
    to any of them; it is held over no I/O. To `lost` finalizers append flights that nobody ended,
    without a lock; `settle` ends them. `_waiters` are in a queue, and perhaps not asked before
    their turn comes.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changes = 0
        self.lost: deque[Flight] = deque()
        self._changed = threading.Condition(self.lock)
        self._live: list[Flight] = []
        self._ended: deque[Flight] = deque(maxlen=REMEMBERED)
        self._forgotten = 0
        self._waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()

    @uninterrupted
    def begin(
        self, chain: KeyChain, start: int, stops: Iterable[int] | None = None, *, bends: bool = True
    ) -> Flight:
        """Note a prompt that is about to be computed from `start` on; its owner ends it.

        It keeps restore points for those that are in a queue already. Ends the lost ones.
        """
        self.settle()
        flight = Flight(self, chain, start, stops, bends=bends)
        with self.lock:
            self._live.append(flight)
            self.moved(flight)
            for waiter in self._waiters if stops is not None else ():
                if waiter.chain.namespace == chain.namespace:
                    goal = flight.goal(_restorable(waiter.chain))
                    if goal > start and goal >= waiter.found + chain.block_size:
                        flight.want(goal)
        return flight

    @property
    def idle(self) -> bool:
        """True while no prompt is computed."""
        return not self._live

    @uninterrupted
    def enter(self, waiter: Waiter) -> None:
        """Note a request that is in a queue; until it leaves, or is lost."""
        with self.lock:
            self._waiters.add(waiter)

    @uninterrupted
    def leave(self, waiter: Waiter) -> None:
        """Forget a request that is in a queue no more; any number of times."""
        with self.lock:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._ended.clear()

    def moved(self, flight: Flight) -> None:
        """Note that something happened to a flight; the lock is held."""
        self.changes += 1
        flight.change = self.changes
        self._changed.notify_all()

    @uninterrupted
    def settle(self) -> None:
        """End the flights whose owners were lost."""
        while self.lost:
            try:
                flight = self.lost.popleft()
            except IndexError:
                return
            flight.end()

    @uninterrupted
    def check_integrity(self) -> None:
        """Assert that no prompt is kept that nobody computes or waits for: a lost flight is one
        that still counts as live, and ended ones are remembered for waiters only."""
        with self.lock:
            live, lost = set(self._live), set(self.lost)
            assert lost <= live, f"{len(lost - live)} flights that ended count as lost"
            assert self._waiters or not self._ended, "flights are remembered, and nobody waits"
        self.settle()

    @uninterrupted
    def shared(self, chain: KeyChain) -> int:
        """Return how many of a prompt's tokens one that is being computed begins with."""
        self.settle()
        with self.lock:
            return max(
                (
                    flight.shares(chain.tokens)
                    for flight in self._live
                    if flight.namespace == chain.namespace
                ),
                default=0,
            )

    def forget(self, flight: Flight) -> None:
        """Drop a flight that has ended; the lock is held."""
        self._live.remove(flight)
        if not self._waiters:
            return
        if len(self._ended) == REMEMBERED:
            self._forgotten = self._ended[0].change
        self._ended.append(flight)

    @uninterrupted
    def worth_waiting(self, chain: KeyChain, found: int) -> bool:
        """True while another request computes a block or more of a prompt beyond the `found`
        tokens that can be restored now. Has that one keep a restore point where they part."""
        return self.promised(chain, found) > 0

    @uninterrupted
    def promised(self, chain: KeyChain, found: int) -> int:
        """Return how much of a prompt another request computes, where `worth_waiting` is true, and
        else 0."""
        awaited = self._awaited(chain, found)
        return 0 if awaited is None else awaited[1]

    @uninterrupted
    def in_vain(self, chain: KeyChain, found: int) -> bool:
        """True when the calling thread is the one that computes what a prompt would wait for."""
        awaited = self._awaited(chain, found)
        return awaited is not None and awaited[0].thread == threading.get_ident()

    @uninterrupted
    def has_news(self, chain: KeyChain, found: int, since: int) -> bool:
        """True when, after `changes` was `since`, a request has computed what may take a prompt a
        block or more beyond the `found` tokens that could be restored then."""
        tokens, beyond = _restorable(chain), found + chain.block_size
        with self.lock:
            return self._forgotten > since or any(
                flight.computed(tokens) >= beyond
                for flight in (*self._live, *self._ended)
                if flight.namespace == chain.namespace and flight.change > since
            )

    @uninterrupted
    def wait(self, since: int, timeout: float) -> None:
        """Block until `changes` is no longer `since`, for `timeout` seconds at most."""

        def changed(seconds: float | None) -> bool:
            with self.lock:
                return self._changed.wait_for(lambda: self.changes != since, seconds)

        wait_in_turns(changed, timeout)

    def _awaited(self, chain: KeyChain, found: int) -> tuple[Flight, int] | None:
        """Return the flight that takes a prompt furthest and how far, None when none does by a
        block."""
        self.settle()
        tokens = _restorable(chain)
        now = time.monotonic()
        with self.lock:
            best, furthest = None, found + chain.block_size - 1
            for flight in self._live:
                if flight.namespace == chain.namespace:
                    goal = flight.goal(tokens)
                    if goal > furthest and flight.is_ahead(goal, now):
                        best, furthest = flight, goal
            if best is None:
                return None
            best.want(furthest)
            return best, furthest


def _restorable(chain: KeyChain) -> Tokens:
    """Return the tokens that a restore may bring: the last one is always computed."""
    return chain.tokens[: max(0, len(chain) - 1)]
