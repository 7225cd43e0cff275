"""Begun: a request whose cached prefix is on its way while other requests compute."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from omlx_cache import reasons
from omlx_cache.scope import RestoredSequence, Scope, take
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import KeyChain, as_tokens

_log = logging.getLogger(__name__)

DEFAULT_NEW_TOKENS = 256
MAX_NEW_TOKENS = 65_536
"""Room beyond this is not allocated ahead: "no limit" must not take all memory at once."""


class Begun:
    """What `PrefixCache.begin` returns, and a session takes over; made by any thread.

    `start` reads the prefix into buffers of its own, within `restore_bytes` of all that wait.
    `ready` says that a session would not be quicker later. `cancel`, or losing the object, gives
    the memory back. Nothing raises: tokens that are none, and models that are not supported, are
    ready at once, and their session says why nothing was restored.
    """

    @uninterrupted
    def __init__(
        self, scope: Scope, tokens: Sequence[int], max_new_tokens: int | None = None
    ) -> None:
        self.scope = scope
        self.tokens = listed(tokens)
        self.chain: KeyChain | None = None
        self.stamp = scope.store.stamp()
        self.miss_reason: str | None = None
        self._began = time.monotonic()
        self._pending = None
        try:
            array = as_tokens(self.tokens)
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
        room = len(array) + _room(max_new_tokens)
        self._pending = scope.pending(self.chain, len(array) - 1, room, self.stamp)

    @uninterrupted
    def start(self) -> None:
        """Begin to read; returns at once, reads no payload and waits for no disk."""
        if self._pending is not None:
            try:
                self._pending.start()
            except Exception:
                _log.exception("nothing is read ahead")

    @property
    def ready(self) -> bool:
        """True when waiting longer makes the session no quicker: all has come, or nothing is read
        ahead because it is larger than `restore_bytes`, or the store closed. Cheap to poll."""
        pending = self._pending
        if pending is None or not pending.started or self.scope.store.closed:
            return True
        return pending.ready or pending.oversize

    @uninterrupted
    def wait(self, timeout: float | None = None) -> bool:
        """Block until `ready`, for `timeout` seconds at most."""
        if self._pending is not None and not self.ready:
            self._pending.wait(timeout)
        return self.ready

    @property
    def deadline(self) -> float:
        """Seconds, from now, that its session may still wait for the disk, as the settings say."""
        settings = self.scope.store.settings
        allowed = settings.restore_wait_seconds
        allowed += settings.restore_wait_seconds_per_token * len(self.tokens)
        return max(0.0, self._began + allowed - time.monotonic())

    @uninterrupted
    def cancel(self) -> None:
        """Read no more and give the memory back; any thread, any number of times."""
        if self._pending is not None:
            self._pending.cancel()

    def take(self, deadline: float | None) -> RestoredSequence:
        """Return what has come after `deadline` seconds at most; once, on the model's thread."""
        if self._pending is not None and self.scope.store.closed:
            # Nothing comes any more: a deadline would be waited for in vain.
            self.cancel()
            return RestoredSequence(self.scope.fresh(), 0, 0, reasons.STORE_CLOSED)
        if self._pending is None:
            return RestoredSequence(self.scope.fresh(), 0, 0, self.miss_reason)
        return take(self._pending, deadline)


def listed(tokens: Any) -> list[Any]:
    """Return tokens of any kind of sequence as a list; what is no sequence, as one bad token."""
    plain = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    try:
        return list(plain)
    except TypeError:
        return [plain]


def _room(max_new_tokens: Any) -> int:
    """Return the tokens to make room for: a whole number within limits, else the default."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        return DEFAULT_NEW_TOKENS
    return min(max(0, max_new_tokens), MAX_NEW_TOKENS)
