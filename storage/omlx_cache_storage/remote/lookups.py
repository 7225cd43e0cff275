"""Look-ups in flight: on threads of their own, joined by whoever asks the same, and waited for no
longer than until a deadline."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from omlx_cache_storage.interrupts import done_within, uninterrupted
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.remote import reasons


class Inquiry(NamedTuple):
    """A chain and what of it is wanted.

    `keys` are its boundaries from the namespace (of no block) on: `keys[n]` is the key of the first
    n blocks. `paged` is the group of which every block is needed, None for a model without one; the
    first `known` blocks of it are to be had here. `others` are the other groups: a window's with
    the blocks that it reaches back, a state's with 0. `length` is the prompt's, in tokens, and
    `key` gives the key of a prefix of any length up to that. `firsts` are pages of the other groups
    that are needed wherever a prefix ends.
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
    """What came of an inquiry: whether pages are known now that were not, and in a word why not
    everything was found out, "" when it was."""

    news: bool
    trouble: str = ""


THREADS = 4
"""More than the failures in a row after which nobody asks: all of them may hang."""
MOST_IN_FLIGHT = 256

_Same = tuple[object, ...]
"""What two inquiries have in common when the one's answer is the other's."""


@dataclass(slots=True)
class _LookupInFlight:
    """A look-up, since when, and whether somebody was told that it is late."""

    future: "Future[Asked]"
    began: float
    late: bool = False


class Lookups:
    """Runs `answer(inquiry)` on at most `THREADS` threads, which may hang. Any thread may call.

    `late` is told once of each look-up that somebody waited for and that took longer than
    `lookup_seconds`. `_lock` guards `_in_flight`.
    """

    def __init__(
        self, answer: Callable[[Inquiry], Asked], lookup_seconds: float, late: Callable[[], None]
    ) -> None:
        self._answer = answer
        self._lookup_seconds = lookup_seconds
        self._late = late
        self._lock = threading.Lock()
        self._in_flight: dict[_Same, _LookupInFlight] = {}
        self._pool = ReaderPool(THREADS, "omlx-cache-remote-ask")

    @uninterrupted
    def ask(self, inquiry: Inquiry, timeout: float | None) -> Asked:
        """Return what came of it, waiting at most `timeout` seconds and no longer than until
        `lookup_seconds` after it began. It goes on, and what it finds becomes known."""
        same = _same(inquiry)
        with self._lock:
            found = self._in_flight.get(same)
            if found is None:
                if len(self._in_flight) >= MOST_IN_FLIGHT:
                    return Asked(False, reasons.TIMEOUT)
                try:
                    future = self._pool.submit(self._answer, inquiry)
                except RuntimeError:
                    return Asked(False, reasons.UNREACHABLE)
                found = self._in_flight[same] = _LookupInFlight(future, time.monotonic())
        found.future.add_done_callback(lambda _: self._forget(same, found))
        return self._wait(found, timeout)

    def close(self, timeout: float) -> bool:
        """Begin no more, and wake who waits; False when one hangs for longer."""
        return self._pool.stop(timeout)

    def _wait(self, found: _LookupInFlight, timeout: float | None) -> Asked:
        left = found.began + self._lookup_seconds - time.monotonic()
        seconds = max(0.0, left if timeout is None else min(left, timeout))
        if done_within(found.future, seconds):
            if found.future.cancelled():
                return Asked(False, reasons.UNREACHABLE)
            return found.future.result(0)
        if timeout == 0:
            return Asked(False)
        if left <= seconds:
            with self._lock:
                told, found.late = found.late, True
            if not told:
                self._late()
        return Asked(False, reasons.TIMEOUT)

    def _forget(self, same: _Same, found: _LookupInFlight) -> None:
        with self._lock:
            if self._in_flight.get(same) is found:
                del self._in_flight[same]


def _same(inquiry: Inquiry) -> _Same:
    return (
        inquiry.namespace,
        inquiry.keys[-1],
        inquiry.known,
        (inquiry.paged, *inquiry.others),
        inquiry.length,
        inquiry.key(inquiry.length),
    )
