"""Prompts in flight: what is being computed now, so that nobody computes the same beside it.

A request whose next blocks another one is computing waits for them in its scheduler's queue, and
restores them. Prompts are compared token by token, within one namespace: never across salts.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable

from omlx_cache_storage.interrupts import uninterrupted, wait_in_turns
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, shared_length

STALLED_SECONDS = 120.0
"""A flight without progress for so long is not waited for any more: nobody may be computing it."""
WAIT_SECONDS = 600.0
"""So long a request waits in its queue for blocks that others compute: a prompt of a million tokens
takes about as long; then the request computes them itself."""
REFUSALS = 2
"""After so many chunks in a row whose blocks found no room it is not waited for either: there is
nothing to restore. One alone is often made good by the next."""
REMEMBERED = 16
"""How many flights that ended are remembered, for requests that did not look meanwhile."""
POLL_SECONDS = 1.0
"""How often a waiting request checks whether a flight has stalled while no flight changes."""


class PromptFlight:
    """A prompt whose tokens from `start` on are computed by one request.

    `stops` are where windows and recurrent state will be kept, None when the prompt can be restored
    at any block. Its owner asks for `take_wanted` before each chunk, and stops there too. It
    belongs to the thread that began it. Any thread may call; the flights' lock guards everything
    mutable.
    """

    def __init__(
        self, flights: "Flights", chain: KeyChain, start: int, stops: Iterable[int] | None
    ) -> None:
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
        self.change = 0
        self.finalizer: weakref.finalize[[PromptFlight], object] | None = None

    @uninterrupted
    def reach(self, position: int, *, refused: bool = False) -> None:
        """Note that the first `position` tokens were computed and handed over as far as they go;
        `refused` when complete blocks of them found no room."""
        with self._flights.lock:
            if position > self._reached:
                self._reached = position
                self._refusals = self._refusals + 1 if refused else 0
                self._moved = time.monotonic()
                self._flights.changed(self)

    @uninterrupted
    def keep(self, positions: Iterable[int]) -> None:
        """Note that windows and recurrent state will be kept at more positions."""
        with self._flights.lock:
            if self._stops is not None:
                self._stops.update(positions)

    @uninterrupted
    def end(self) -> None:
        """Note that nothing more is computed; any number of times."""
        if self.finalizer is not None:
            # It holds the flight, and with it every token of the prompt.
            self.finalizer.detach()
        with self._flights.lock:
            self._flights.ended(self)

    @uninterrupted
    def take_wanted(self) -> list[int]:
        """Return where others part from this prompt and want a restore point, each once."""
        with self._flights.lock:
            wanted, self._wanted = self._wanted, []
            return wanted

    def goal(self, tokens: Tokens) -> int:
        """Return how far a prompt could be restored when this one has passed; the lock is held."""
        shared = shared_length(self.tokens, tokens)
        if self._stops is not None and shared > self._reached:
            return shared
        return self._point(shared)

    def computed(self, tokens: Tokens) -> int:
        """Return how far a prompt could be restored by now; the lock is held."""
        return self._point(min(shared_length(self.tokens, tokens), self._reached))

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
    without a lock; `settle` ends them. `_waiters` are in a queue, and perhaps not polled before
    their turn comes. A request waits for others for `wait_seconds` in all at most.
    """

    def __init__(self) -> None:
        self.wait_seconds = WAIT_SECONDS
        self.lock = threading.Lock()
        self.changes = 0
        self.lost: deque[PromptFlight] = deque()
        self._changed = threading.Condition(self.lock)
        self._live: list[PromptFlight] = []
        self._ended: deque[PromptFlight] = deque(maxlen=REMEMBERED)
        self._forgotten = 0
        self._waiters: weakref.WeakSet[QueueWait] = weakref.WeakSet()

    @uninterrupted
    def begin(
        self,
        chain: KeyChain,
        start: int,
        stops: Iterable[int] | None = None,
        owner: object = None,
    ) -> PromptFlight:
        """Note a prompt that is about to be computed from `start` on, until it is ended or its
        `owner` is lost.

        It keeps restore points for requests that are in a queue already. Ends the lost ones.
        """
        self.settle()
        flight = PromptFlight(self, chain, start, stops)
        if owner is not None:
            # A finalizer may run while any lock is held, so it takes none.
            flight.finalizer = weakref.finalize(owner, self.lost.append, flight)
            flight.finalizer.atexit = False
        with self.lock:
            self._live.append(flight)
            self.changed(flight)
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

    def enter(self, waiter: "QueueWait") -> None:
        """Note a request that is in a queue, until it leaves or is lost."""
        with self.lock:
            self._waiters.add(waiter)

    def leave(self, waiter: "QueueWait") -> None:
        """Forget a request that is in a queue no more; any number of times."""
        with self.lock:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._ended.clear()

    def changed(self, flight: PromptFlight) -> None:
        """Note that something happened to a flight; the lock is held."""
        self.changes += 1
        flight.change = self.changes
        self._changed.notify_all()

    def ended(self, flight: PromptFlight) -> None:
        """Drop a flight, unless that was done; the lock is held."""
        if flight not in self._live:
            return
        self._live.remove(flight)
        if self._waiters:
            if len(self._ended) == REMEMBERED:
                self._forgotten = self._ended[0].change
            self._ended.append(flight)
        self.changed(flight)

    @uninterrupted
    def settle(self) -> None:
        """End the flights whose owners were lost."""
        while self.lost:
            try:
                flight = self.lost.popleft()
            except IndexError:
                return
            flight.end()

    def check_integrity(self) -> None:
        """Assert that no prompt is kept that nobody computes or waits for: a lost flight is one
        that still counts as live, and ended ones are remembered for waiters only."""
        with self.lock:
            live, lost = set(self._live), set(self.lost)
            assert lost <= live, f"{len(lost - live)} flights that ended count as lost"
            assert self._waiters or not self._ended, "flights are remembered, and nobody waits"
        self.settle()

    def shared(self, chain: KeyChain) -> int:
        """Return how many of a prompt's tokens one that is being computed begins with."""
        self.settle()
        with self.lock:
            alike = [one.tokens for one in self._live if one.namespace == chain.namespace]
        return max((shared_length(tokens, chain.tokens) for tokens in alike), default=0)

    @uninterrupted
    def promised(self, chain: KeyChain, found: int) -> int:
        """Return how much of a prompt another request computes, 0 unless that is a block or more
        beyond the `found` tokens that can be restored now. That one then keeps a restore point
        where the two part."""
        return self._awaited(chain, found)[1]

    def in_vain(self, chain: KeyChain, found: int) -> bool:
        """True when the calling thread is the one that computes what a prompt would wait for."""
        flight, _goal = self._awaited(chain, found)
        return flight is not None and flight.thread == threading.get_ident()

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

    def wait(self, since: int, timeout: float) -> None:
        """Block until `changes` is no longer `since`, for `timeout` seconds at most."""

        def changed(seconds: float | None) -> bool:
            with self.lock:
                return self._changed.wait_for(lambda: self.changes != since, seconds)

        wait_in_turns(changed, timeout)

    def _awaited(self, chain: KeyChain, found: int) -> tuple[PromptFlight | None, int]:
        """Return the flight that takes a prompt furthest and how far; None and 0 when none does by
        a block."""
        self.settle()
        tokens, now = _restorable(chain), time.monotonic()
        best, furthest = None, found + chain.block_size - 1
        with self.lock:
            for flight in self._live:
                if flight.namespace == chain.namespace:
                    goal = flight.goal(tokens)
                    if goal > furthest and flight.is_ahead(goal, now):
                        best, furthest = flight, goal
            if best is None:
                return None, 0
            best.want(furthest)
            return best, furthest


class QueueWait:
    """Whether one request waits in its queue for blocks that another one computes, and how long.

    `is_on` while it is better not to begin; in all for `flights.wait_seconds`, or until `give_up`.
    `found` tokens of its prompt can be restored by now. Mutable, guarded by its owner's lock.
    """

    def __init__(self, flights: Flights, chain: KeyChain) -> None:
        self.chain = chain
        self.found = 0
        self.is_on = False
        self._flights = flights
        self._most_seconds = flights.wait_seconds
        self._seen = 0
        self._polled = 0.0
        self._since = 0.0
        self._before = 0.0

    @property
    def seconds(self) -> float:
        """How long the request waited, in all."""
        return self._before + (time.monotonic() - self._since if self.is_on else 0.0)

    def mark(self) -> None:
        """Note that a look-up begins: what happens from now on may be missing in it."""
        self._seen = self._flights.changes

    def decide(self, found: int) -> bool:
        """Return `is_on`, now that `found` tokens can be restored."""
        self.found = found
        self._flights.enter(self)
        self._before = self.seconds
        self._since = time.monotonic()
        self.is_on = self._is_worth_it()
        return self.is_on

    def is_stale(self) -> bool:
        """True when the prefix should be looked up again. Cheap while nothing happens."""
        self._flights.settle()
        seen, changes = self._seen, self._flights.changes
        if changes == seen and not self.is_on:
            return False
        if changes == seen and time.monotonic() - self._polled < POLL_SECONDS:
            return self.seconds >= self._most_seconds
        self._seen = changes
        if self.is_on:
            return not self._is_worth_it()
        return self._is_worth_it() or self._flights.has_news(self.chain, self.found, seen)

    def block(self, timeout: float | None) -> bool:
        """Block until something happens, for `timeout` seconds at most and not for long. False at
        once when the calling thread is the one that computes what is waited for."""
        if self._flights.in_vain(self.chain, self.found):
            return False
        longest = min(POLL_SECONDS, max(0.0, self._most_seconds - self.seconds))
        self._flights.wait(self._seen, longest if timeout is None else min(timeout, longest))
        return True

    def give_up(self) -> None:
        """Wait no more, though the request stays in its queue."""
        self._before = self.seconds
        self.is_on = False
        self._most_seconds = 0.0

    def leave(self) -> None:
        """Wait no more: the request leaves its queue."""
        self.give_up()
        self._flights.leave(self)

    def _is_worth_it(self) -> bool:
        self._polled = time.monotonic()
        in_time = self.seconds < self._most_seconds
        return in_time and self._flights.promised(self.chain, self.found) > 0


def _restorable(chain: KeyChain) -> Tokens:
    """Return the tokens that a restore may bring: the last one is always computed."""
    return chain.tokens[: max(0, len(chain) - 1)]
