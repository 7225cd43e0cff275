"""Requests that wait, before the generator, for the blocks that another one computes."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from omlx_cache.integrations.mlx_lm.server.replies import Reply

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""After so long they are looked at again although nothing has happened: who computes may stall."""

ALIVE_SECONDS = 5.0
"""How often clients are told that their requests are alive."""

PAUSES = 10.0
"""Looks at many long prompts take no more than one part in so many of the thread's time."""


class Arrival(NamedTuple):
    """A request that was taken from mlx-lm's queue, as mlx-lm unpacks it."""

    reply: Reply
    request: Any
    args: Any


@dataclass(frozen=True, slots=True)
class _Held:
    """A request for a prompt of so many tokens. `waits` says whether it is still worth while; it
    may raise."""

    arrival: Arrival
    tokens: int
    waits: Callable[[], bool]
    since: float


class HeldRequests:
    """First come, first served; each for `seconds` at most. Use it on the generation thread.

    A request that cannot join the batch closes the row behind those that are held: it comes when
    all of them have gone, and nobody is taken in before. `changes` moves with what may free one.
    """

    def __init__(self, changes: Callable[[], int], seconds: float) -> None:
        self._changes = changes
        self._seconds = seconds
        self._held: list[_Held] = []
        self._last: Arrival | None = None
        self._free: _Held | None = None
        self._seen = -1
        self._looked = 0.0
        self._told = 0.0
        self._paused_until = 0.0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def closed(self) -> bool:
        """True while nobody may be taken in."""
        return self._last is not None

    def add(self, arrival: Arrival, tokens: int, waits: Callable[[], bool]) -> None:
        """Hold a request, whose client has its context, while `waits` is true."""
        arrival.reply.held = True
        self._held.append(_Held(arrival, tokens, waits, time.monotonic()))
        arrival.reply.put((0, tokens))

    def close_with(self, arrival: Arrival) -> bool:
        """Keep a request until all that are held have gone; False when none is."""
        if not self._held:
            return False
        arrival.reply.held = True
        self._last = arrival
        return True

    def take(self) -> Arrival | None:
        """Return the first request that need not wait any longer."""
        if self.has_free():
            assert self._free is not None
            held, self._free = self._free, None
            self._held.remove(held)
            reply = held.arrival.reply
            # From its arrival: nobody looks at the queue while a step computes what it shares.
            reply.held_seconds = time.perf_counter() - reply.arrived
            return _released(held.arrival)
        if self._last is not None and not self._held:
            last, self._last = self._last, None
            return _released(last)
        return None

    def has_free(self) -> bool:
        """True when `take` has one; looks again when something has happened since the last time."""
        now = time.monotonic()
        self._attend(now)
        changes = self._changes()
        quiet = changes == self._seen and now - self._looked < LOOK_SECONDS
        if self._free is None and self._held and not quiet and now >= self._paused_until:
            self._free = next((held for held in self._held if self._is_free(held, now)), None)
            if self._free is None:
                # Whoever goes changes what the others wait for: then they are looked at at once.
                self._seen, self._looked = changes, now
                self._paused_until = now + PAUSES * (time.monotonic() - now)
        return self._free is not None

    def _attend(self, now: float) -> None:
        """Forget those whose clients have left, and tell the others that theirs are alive."""
        for held in [held for held in self._held if held.arrival.reply.gone]:
            self._held.remove(held)
            if held is self._free:
                self._free = None
        if now - self._told >= ALIVE_SECONDS:
            self._told = now
            for held in self._held:
                held.arrival.reply.put((0, held.tokens))

    def _is_free(self, held: _Held, now: float) -> bool:
        return now - held.since >= self._seconds or not still(held.waits)


def still(waits: Callable[[], bool]) -> bool:
    """Ask whether it is worth while to wait; whoever cannot be told does not. Never raises."""
    try:
        return waits()
    except Exception:
        _log.exception("a request does not wait for others")
        return False


def _released(arrival: Arrival) -> Arrival:
    arrival.reply.held = False
    return arrival
