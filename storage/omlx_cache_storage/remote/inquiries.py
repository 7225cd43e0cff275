"""Inquiries under way: on threads of their own, joined by whoever asks the same, and waited for no
longer than until a deadline."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from omlx_cache_storage.interrupts import done_within, uninterrupted
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.readers import ReaderPool
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.inquiry import Asked, Inquiry

THREADS = 4
"""More than the failures in a row after which nobody asks: all of them may hang."""
MOST_UNDER_WAY = 256
IMPATIENT_SECONDS = 1.0
"""After one was late, nobody waits for so long, unless one is answered in time meanwhile: a request
asks several times, along several chains, and shall lose no more than one deadline in all."""


class _Same(NamedTuple):
    """What two inquiries have in common when the one's answer is the other's."""

    namespace: BlockKey
    last: BlockKey
    known: int
    groups: Sequence[str | None]
    length: int
    end: BlockKey


class _UnderWay:
    """An inquiry, since when, and whether somebody was told that it is late."""

    __slots__ = ("began", "future", "late")

    def __init__(self, future: "Future[Asked]") -> None:
        self.began = time.monotonic()
        self.future = future
        self.late = False


class Inquiries:
    """Runs `answer(inquiry)` on at most `THREADS` threads, which may hang. Any thread may call.

    `late` is told once of each inquiry that took longer than `lookup_seconds`. `_lock` guards
    `_under_way`, and `_late_at`, when somebody waited for one in vain.
    """

    def __init__(
        self,
        answer: Callable[[Inquiry], Asked],
        lookup_seconds: float,
        late: Callable[[], None],
    ) -> None:
        self._answer = answer
        self._lookup_seconds = lookup_seconds
        self._late = late
        self._lock = threading.Lock()
        self._under_way: dict[_Same, _UnderWay] = {}
        self._late_at: float | None = None
        self._pool = ReaderPool(THREADS, "omlx-cache-remote-ask")

    @uninterrupted
    def ask(self, inquiry: Inquiry, timeout: float | None) -> Asked:
        """Return what came of it, waiting at most `timeout` seconds and no longer than until
        `lookup_seconds` after it began; not at all while another was late a moment ago. It goes on,
        and what it finds becomes known."""
        same = _same(inquiry)
        with self._lock:
            under_way = self._under_way.get(same)
            if under_way is None:
                if len(self._under_way) >= MOST_UNDER_WAY:
                    return Asked(False, reasons.TIMEOUT)
                under_way = self._under_way[same] = _UnderWay(Future())
                begun = True
            else:
                begun = False
        if begun:
            try:
                self._pool.submit(self._run, same, inquiry, under_way)
            except RuntimeError:
                self._done(same, under_way, Asked(False, reasons.UNREACHABLE))
        return self._wait(under_way, timeout)

    def be_patient(self) -> None:
        """Forget that one was late: the breaker has taken over, or the store answers again."""
        with self._lock:
            self._late_at = None

    def close(self, timeout: float) -> bool:
        """Begin no more, and wake who waits; False when one hangs for longer."""
        ended = self._pool.stop(timeout)
        with self._lock:
            left = list(self._under_way.items())
        for same, under_way in left:
            self._done(same, under_way, Asked(False, reasons.UNREACHABLE))
        return ended

    def _wait(self, under_way: _UnderWay, timeout: float | None) -> Asked:
        left = under_way.began + self._lookup_seconds - time.monotonic()
        seconds = max(0.0, left if timeout is None else min(left, timeout))
        impatient = self._is_impatient()
        if done_within(under_way.future, 0.0 if impatient else seconds):
            return under_way.future.result(0)
        if timeout == 0:
            return Asked(False)
        if impatient:
            self._tell_overdue()
        elif left <= seconds:
            with self._lock:
                self._late_at = time.monotonic()
            self._tell(under_way)
        return Asked(False, reasons.TIMEOUT)

    def _is_impatient(self) -> bool:
        with self._lock:
            since = self._late_at
        return since is not None and time.monotonic() - since < IMPATIENT_SECONDS

    def _tell_overdue(self) -> None:
        """Count those as late that nobody waited for: a client may hang, and say nothing."""
        before = time.monotonic() - self._lookup_seconds
        with self._lock:
            overdue = [one for one in self._under_way.values() if one.began < before]
        for one in overdue:
            self._tell(one)

    def _tell(self, under_way: _UnderWay) -> None:
        """Count an inquiry as late, once."""
        with self._lock:
            told, under_way.late = under_way.late, True
        if not told:
            self._late()

    def _run(self, same: _Same, inquiry: Inquiry, under_way: _UnderWay) -> None:
        asked = Asked(False, reasons.FAILED)
        try:
            asked = self._answer(inquiry)
        finally:
            self._done(same, under_way, asked)

    def _done(self, same: _Same, under_way: _UnderWay, asked: Asked) -> None:
        with self._lock:
            if self._under_way.get(same) is under_way:
                del self._under_way[same]
            if not under_way.future.done():
                under_way.future.set_result(asked)
            in_time = time.monotonic() - under_way.began <= self._lookup_seconds
            answered = asked.trouble in ("", reasons.FOREIGN)
            if in_time and answered:
                self._late_at = None
        if answered and not in_time:
            self._tell(under_way)


def _same(inquiry: Inquiry) -> _Same:
    return _Same(
        inquiry.namespace,
        inquiry.keys[-1],
        inquiry.known,
        (inquiry.paged, *inquiry.others),
        inquiry.length,
        inquiry.key(inquiry.length),
    )
