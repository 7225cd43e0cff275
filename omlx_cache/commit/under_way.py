"""A prompt that is being computed, as its session tells those who wait for the same blocks."""

import weakref
from collections.abc import Iterable

from omlx_cache.commit.committer import Committer
from omlx_cache.flights import Flight, Flights
from omlx_cache_storage.keys import KeyChain


class UnderWay:
    """Makes a session's prompt known from `begin` on until it is computed, ended or lost.

    Use it on the model's thread; `end`, after which nothing else has an effect, on any.
    """

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._flight: Flight | None = None
        self._finalizer: weakref.finalize[[Flight], object] | None = None
        self._committer: Committer | None = None
        self._length = 0
        self._block_size = 1

    def begin(
        self, owner: object, chain: KeyChain, committer: Committer, start: int, *, trims: bool
    ) -> None:
        """Make a prompt known that `owner` computes from `start` on. Nobody waits for less than a
        block: such a prompt is not made known."""
        self._committer = committer
        self._length = len(chain)
        self._block_size = chain.block_size
        if self._length - start < chain.block_size:
            return
        stops = None if trims else committer.stops
        self._flight = self._flights.begin(chain, start, stops)
        # A finalizer may run while any lock is held, so it takes none: the next flight that begins
        # ends those that were lost, and so does a request that waits.
        self._finalizer = weakref.finalize(owner, self._flights.lost.append, self._flight)
        self._finalizer.atexit = False

    def take_wanted(self, fed: int) -> list[int]:
        """Have restore points kept where others part from the prompt, and return the new ones."""
        flight = self._flight
        if flight is None or self._committer is None:
            return []
        wanted = [stop for stop in flight.take_wanted() if fed < stop < self._length]
        if wanted:
            self._committer.want(wanted)
        return wanted

    def keep(self, positions: Iterable[int]) -> None:
        """Say that restore points will be kept at more positions."""
        flight = self._flight
        if flight is not None:
            flight.keep(positions)

    def reach(self, position: int) -> None:
        """Say that so many tokens were computed, and stored or refused; the last one of a prompt is
        fed with its answer."""
        flight, committer = self._flight, self._committer
        if flight is not None and committer is not None:
            whole = position // self._block_size * self._block_size
            flight.reach(position, refused=whole > committer.done)
            if position >= self._length - 1:
                self.end()

    def end(self) -> None:
        """Say that no more of the prompt is computed; any number of times."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.end()
        if self._finalizer is not None:
            # It holds the flight, and with it every token of the prompt.
            self._finalizer.detach()
