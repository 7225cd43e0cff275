"""Hold: whether a request stays in its queue for blocks that another one computes, and how long."""

import time

from omlx_cache.flights import Flights, Waiter
from omlx_cache_storage.keys import KeyChain

ASK_SECONDS = 1.0
"""How often it is asked whether a flight has stalled, when nothing is heard of any."""


class Hold:
    """Decides for one request, each time that it has looked what it can restore.

    `held` while it is better not to begin; in all for `most_seconds`, or until `give_up`. Mutable,
    guarded by its owner's lock.
    """

    def __init__(self, flights: Flights, chain: KeyChain, most_seconds: float) -> None:
        self.held = False
        self._flights = flights
        self._waiter = Waiter(chain)
        self._most_seconds = most_seconds
        self._seen = 0
        self._asked = 0.0
        self._since = 0.0
        self._before = 0.0

    @property
    def seconds(self) -> float:
        """How long the request was held, in all."""
        return self._before + (time.monotonic() - self._since if self.held else 0.0)

    def mark(self) -> None:
        """Note that a look-up begins: what happens from now on may be missing in it."""
        self._seen = self._flights.changes

    def decide(self, found: int) -> bool:
        """Return `held`, now that `found` tokens can be restored."""
        self._waiter.found = found
        self._flights.enter(self._waiter)
        self._before = self.seconds
        self._since = time.monotonic()
        self.held = self._is_worth_it()
        return self.held

    def is_stale(self) -> bool:
        """True when the prefix should be looked up again. Cheap while nothing happens."""
        self._flights.settle()
        changes, now = self._flights.changes, time.monotonic()
        if changes == self._seen and not self.held:
            return False
        if self.held and changes == self._seen and now - self._asked < ASK_SECONDS:
            return self.seconds >= self._most_seconds
        if self.held:
            self._seen = changes
            return not self._is_worth_it()
        news = self._is_worth_it() or self._has_news()
        self._seen = changes
        return news

    def wait(self, timeout: float | None) -> bool:
        """Block until something happens, for `timeout` seconds at most and not for long. False at
        once when the calling thread is the one that computes what is waited for."""
        if self._flights.in_vain(self._waiter.chain, self._waiter.found):
            return False
        longest = min(ASK_SECONDS, max(0.0, self._most_seconds - self.seconds))
        self._flights.wait(self._seen, longest if timeout is None else min(timeout, longest))
        return True

    def give_up(self) -> None:
        """Hold the request no more, though it stays in its queue."""
        self._before = self.seconds
        self.held = False
        self._most_seconds = 0.0

    def leave(self) -> None:
        """Hold the request no more: it leaves its queue."""
        self.give_up()
        self._flights.leave(self._waiter)

    def _is_worth_it(self) -> bool:
        self._asked = time.monotonic()
        return self.seconds < self._most_seconds and self._flights.worth_waiting(
            self._waiter.chain, self._waiter.found
        )

    def _has_news(self) -> bool:
        return self._flights.has_news(self._waiter.chain, self._waiter.found, self._seen)
