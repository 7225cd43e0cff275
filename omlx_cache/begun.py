"""Begun: a request whose cached prefix is in flight while other requests compute."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from math import inf
from typing import Any

from omlx_cache import reasons
from omlx_cache.flights import POLL_SECONDS, PromptFlight
from omlx_cache.restore.pending import Restored, missed
from omlx_cache.scope import Scope
from omlx_cache_storage.calls import (
    SECONDS,
    Arguments,
    is_count,
    is_timeout,
    turn,
    uninterrupted,
    wait_in_turns,
)
from omlx_cache_storage.eviction.order import Priority, is_priority
from omlx_cache_storage.keys import KeyChain, Tokens, as_tokens

_log = logging.getLogger(__name__)

DEFAULT_NEW_TOKENS = 256
FLAT = "a flat sequence of 64-bit integers"
WAIT_SECONDS = 2.0
"""Seconds that a session waits for a restore that was begun: a disk that works begins to deliver
long before."""
WAIT_SECONDS_PER_TOKEN = 0.001
"""Seconds for each token of the prompt: computing one takes about as long."""
MAX_NEW_TOKENS = 65_536
"""No more room is allocated ahead: "no limit" must not take all memory at once."""


class Begun:
    """A request that `PrefixCache.begin` has begun, for a session to take over; made by any thread.

    `start` reads the prefix into buffers of its own, within the memory of all waiting restores.
    While another request computes a block or more beyond it, it is `held`, and nothing is read.
    `cancel`, or losing the object, releases the memory. Nothing raises: invalid tokens and
    unsupported models are ready at once, and their session says why nothing was restored.

    `_lock` guards `_began`, `stamp`, `_over` (no thread looks again) and how long it is held:
    `_since` when, None while it is not; `held_seconds` until the latest lookup; `_most_seconds` in
    all; `waited_for`, the latest request whose blocks it waited for. No thread reads a payload or
    waits under that lock. `_seen` was the flights' state then, `found` and `has_news` are a
    `Waiter`'s.
    """

    def __init__(
        self,
        scope: Scope,
        tokens: Sequence[int],
        max_new_tokens: int | None = None,
        priority: object = "normal",
    ) -> None:
        self.scope = scope
        # In the child of a fork its lock may be held by a thread that is not there.
        self.pid = os.getpid()
        known = scope.store.arguments.known
        self.priority: Priority = known(
            "priority", priority, is_priority, "normal", "low, normal or high"
        )
        wanted = known("max_new_tokens", max_new_tokens, is_count, None, "a number of tokens")
        self.tokens: list[Any] = []
        self.chain: KeyChain | None = None
        self.stamp = scope.store.stamp(self.priority)
        self.miss_reason: str | None = None
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._over = True
        self._pending = None
        self._flights = scope.store.flights
        self._most_seconds = self._flights.wait_seconds
        self._since: float | None = None
        self._seen = (0, 0, 0)
        self.held_seconds = 0.0
        self.waited_for: int | None = None
        self.found = 0
        self.has_news = False
        try:
            self.tokens = listed(tokens)
            array = as_tokens(self.tokens)
            self.tokens = array.tolist()
        except (ValueError, TypeError, OverflowError) as error:
            self.miss_reason = f"{reasons.BAD_TOKENS}:{error}"
            return
        if not scope.supported:
            self.miss_reason = scope.unsupported_reason
            return
        self.chain = scope.chain(array)
        if len(array) < 2:
            self.miss_reason = reasons.TOO_SHORT
            return
        room = DEFAULT_NEW_TOKENS if wanted is None else min(int(wanted), MAX_NEW_TOKENS)
        self._pending = scope.pending(self.chain, len(array) - 1, len(array) + room, self.stamp)

    def is_for(self, scope: Scope, tokens: Any) -> bool:
        own = self.scope
        # A store has one object for each namespace in use.
        is_own = own.store is scope.store and own.namespace is scope.namespace
        with contextlib.suppress(TypeError):
            return is_own and self.pid == os.getpid() and self.tokens == listed(tokens)
        return False

    def start(self) -> None:
        """Begin to read, or to wait for another; returns at once, and waits for no disk."""
        if self._pending is not None:
            with self._lock:
                self._over = False
                self._look()

    @property
    @uninterrupted
    def held(self) -> bool:
        """True while it is better not to begin: another request computes a block or more beyond
        what can be restored. For `flights.wait_seconds` in all at most; cheap to poll."""
        self._look_if_stale()
        return self._since is not None

    @property
    @uninterrupted
    def ready(self) -> bool:
        """True when waiting longer makes the session no quicker: all pages have come, or none is
        read ahead, as they are larger than all of that memory, or the store closed. Cheap to
        poll."""
        pending = self._pending
        if pending is None or self.scope.store.closed or self.pid != os.getpid():
            return True
        return not self.held and pending.ready

    @uninterrupted
    def wait(self, timeout: float | None = None) -> bool:
        """Block until `ready`, for `timeout` seconds at most, but not for blocks that its own
        thread computes."""
        pending, flights = self._pending, self._flights
        timeout = self.scope.store.arguments.known("timeout", timeout, is_timeout, 0.0, SECONDS)
        deadline = inf if timeout is None else time.monotonic() + timeout
        while pending and not self.ready and (left := deadline - time.monotonic()) > 0:
            if not self.held:
                pending.wait(None if left == inf else left)
                continue
            flight = self._awaited()
            if flight is not None and flight.thread == threading.get_ident():
                self._most_seconds = 0.0
            longest = min(POLL_SECONDS, max(0.0, self._most_seconds - self._held_until_now()))
            changed = partial(turn, flights.on_change, lambda: flights.state != self._seen)
            wait_in_turns(changed, min(left, longest))
        return self.ready

    @property
    def deadline(self) -> float:
        """Seconds, from now, that its session may still wait for the disk; not while it is held."""
        allowed = WAIT_SECONDS + WAIT_SECONDS_PER_TOKEN * len(self.tokens)
        if self._since is not None:
            return allowed
        return max(0.0, self._began + allowed - time.monotonic())

    @uninterrupted
    def cancel(self) -> None:
        """Read no more and give the memory back; any thread, any number of times."""
        if self._pending is not None and self.pid == os.getpid():
            with self._lock:
                self._leave_queue()
                self._pending.cancel()

    def _look_if_stale(self) -> None:
        """Look the prefix up again where that may change whether it is held. Cheap while nothing
        happens."""
        with self._lock:
            if self._over or self.scope.store.closed:
                return
            state, is_held = self._flights.state, self._since is not None
            if state == self._seen:
                is_stale = is_held and self._held_until_now() >= self._most_seconds
            else:
                self._seen = state
                is_stale = self._is_worth_waiting() != is_held or (not is_held and self.has_news)
            if is_stale:
                self._look()

    def _look(self) -> None:
        """Look the prefix up; read it unless it is held; the lock is held."""
        pending, chain = self._pending, self.chain
        assert pending is not None
        assert chain is not None
        try:
            # What happens from now on may be missing in the lookup.
            with self._flights.lock:
                self._flights.waiters[self] = chain
                self.has_news = False
                self._seen = self._flights.state
            stamp, before = self.scope.store.stamp(self.priority), self.found
            found = pending.look(stamp)
            self.found = found.position
            self._hold(self._is_worth_waiting())
            if self._since is not None:
                pending.cancel()
            elif found.position > before or not pending.started:
                pending.cancel()
                self.stamp = stamp
                self._began = time.monotonic()
                pending.start(found)
        except Exception:
            _log.exception("nothing is read ahead")
            self._leave_queue()
            pending.cancel()

    def _held_until_now(self) -> float:
        # It may end meanwhile.
        since = self._since
        return self.held_seconds + (0.0 if since is None else time.monotonic() - since)

    def _awaited(self) -> PromptFlight | None:
        return None if self.chain is None else self._flights.awaited(self.chain, self.found)

    def _is_worth_waiting(self) -> bool:
        in_time = self._held_until_now() < self._most_seconds
        flight = self._awaited() if in_time else None
        if flight is not None:
            self.waited_for = flight.number
        return flight is not None

    def _hold(self, is_held: bool) -> None:
        self.held_seconds = self._held_until_now()
        self._since = time.monotonic() if is_held else None

    def _leave_queue(self) -> None:
        """Look no more, and wait for no request; the lock is held."""
        self._over = True
        self._hold(False)
        with self._flights.lock:
            self._flights.waiters.pop(self, None)

    def take(self, deadline: float | None) -> Restored:
        """Return the restored prefix after `deadline` seconds at most; once, on the model's thread.
        A held one takes the pages that are there now, and waits for no other request."""
        pending = self._pending
        if pending is None:
            return Restored(self.scope.fresh(), missed(self.miss_reason))
        if not self._over:
            self._most_seconds = 0.0
            self._look_if_stale()
            with self._lock:
                self._leave_queue()
        if self.scope.store.closed:
            # Nothing comes any more: a deadline would be waited for in vain.
            pending.cancel()
            return Restored(self.scope.fresh(), missed(reasons.STORE_CLOSED))
        return pending.take(deadline)


def listed(tokens: Any) -> list[Any]:
    """Return any kind of sequence as a list; raises TypeError for anything else, such as text."""
    plain = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(plain, str | bytes | bytearray | Mapping | Set) or not isinstance(
        plain, Iterable
    ):
        raise TypeError(f"tokens must be {FLAT}, got {type(tokens).__name__}")
    return list(plain)


def flat_tokens(tokens: Any, arguments: Arguments) -> Tokens:
    """As `listed`, an array; an empty one, counted and logged once, for anything that is none."""
    try:
        return as_tokens(listed(tokens))
    except (ValueError, TypeError, OverflowError):
        arguments.ignore("tokens", kinds_of(tokens), FLAT)
        return as_tokens([])


def kinds_of(tokens: Any) -> list[str]:
    """Return the types in what is none of a program's tokens: its text must not be in the log."""
    parts = tokens if isinstance(tokens, list | tuple) else [tokens]
    return sorted({type(part).__name__ for part in parts})
