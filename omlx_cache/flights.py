"""Prompts in flight: what is being computed now, so that nobody computes the same beside it.

A request whose next blocks another one is computing waits for them in its scheduler's queue, and
restores them. Prompts are compared token by token, within one namespace: never across salts.
"""

import threading
import time
from collections.abc import Iterable

import numpy as np

from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens

STALLED_SECONDS = 120.0
"""A flight without progress for so long is not waited for any more: nobody may be computing it."""


class Flight:
    """A prompt whose tokens from `start` on are computed by one request.

    `stops` are where windows and recurrent state will be kept, None when the prompt can be restored
    at any block. With `bends` its owner asks for `take_wanted` before each chunk, and stops there
    too. `reached` says how far it was computed and handed to the tiers, taken or refused. Any
    thread may call; the flights' lock guards everything mutable.
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
        self._moved = time.monotonic()
        self._ended = False

    @uninterrupted
    def reach(self, position: int) -> None:
        """Say that the first `position` tokens were computed, and handed over as far as they go."""
        with self._flights.lock:
            if position > self._reached:
                self._reached = position
                self._moved = time.monotonic()
                self._flights.changes += 1

    @uninterrupted
    def end(self) -> None:
        """Say that nothing more is computed; any number of times."""
        with self._flights.lock:
            if not self._ended:
                self._ended = True
                self._flights.forget(self)
                self._flights.changes += 1

    @uninterrupted
    def take_wanted(self) -> list[int]:
        """Return where others part from this prompt and want a restore point, each once."""
        with self._flights.lock:
            wanted, self._wanted = self._wanted, []
            return wanted

    def goal(self, tokens: Tokens) -> int:
        """Return how far a prompt could be restored when this one has passed; the lock is held."""
        shared = _shared(self._tokens, tokens)
        if self._stops is None:
            return shared // self._size * self._size
        if self._bends and shared > self._reached:
            return shared
        return max((stop for stop in self._stops if stop <= shared), default=0)

    def is_ahead(self, goal: int, now: float) -> bool:
        """True while it is worth waiting for it to get there; the lock is held."""
        return self._reached < goal and now - self._moved < STALLED_SECONDS

    def want(self, position: int) -> None:
        """Ask for a restore point at a position; the lock is held."""
        if self._stops is not None and position not in self._stops:
            self._stops.add(position)
            self._wanted.append(position)


class Flights:
    """The prompts that are being computed in this process. Any thread may call.

    `lock` guards them and `changes`, which grows with whatever happens to any of them, and is held
    over no I/O.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changes = 0
        self._live: list[Flight] = []

    @uninterrupted
    def begin(
        self, chain: KeyChain, start: int, stops: Iterable[int] | None = None, *, bends: bool = True
    ) -> Flight:
        """Note a prompt that is about to be computed from `start` on; its owner ends it."""
        flight = Flight(self, chain, start, stops, bends=bends)
        with self.lock:
            self._live.append(flight)
            self.changes += 1
        return flight

    @property
    def idle(self) -> bool:
        """True while no prompt is computed."""
        return not self._live

    def forget(self, flight: Flight) -> None:
        """Drop a flight that has ended; the lock is held."""
        self._live.remove(flight)

    @uninterrupted
    def worth_waiting(self, chain: KeyChain, found: int) -> bool:
        """True while another request computes a block or more of a prompt beyond the `found`
        tokens that can be restored now. Has that one keep a restore point where they part."""
        size = chain.block_size
        # The last token of a prompt is always computed.
        tokens = chain.tokens[: max(0, len(chain) - 1)]
        now = time.monotonic()
        with self.lock:
            best, furthest = None, found + size - 1
            for flight in self._live:
                if flight.namespace == chain.namespace:
                    goal = flight.goal(tokens)
                    if goal > furthest and flight.is_ahead(goal, now):
                        best, furthest = flight, goal
            if best is not None:
                best.want(furthest)
            return best is not None


def _shared(one: Tokens, other: Tokens) -> int:
    """Return how many leading tokens are equal."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
