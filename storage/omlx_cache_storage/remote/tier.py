"""Pages in a store that other machines use too: found by lookups, read and written whole. The store
evicts by itself, so nothing here does."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager

from omlx_cache_storage import errors
from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.errors import ForeignPage, PageError, PageNotSent, PageUnreadable
from omlx_cache_storage.events import SILENT, EventLog
from omlx_cache_storage.io_threads import ReaderPool, bounded_elsewhere, came
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import (
    REMOTE,
    OpenPage,
    PageId,
    PageInfo,
    PageMeta,
    Placed,
    Tail,
)
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import (
    RemoteEngine,
    RemoteError,
    RemoteOptions,
    check_extra,
    known_error,
)
from omlx_cache_storage.remote.envelope import WIRE_BYTES, ReceivedPage
from omlx_cache_storage.remote.knowledge import ABSENT_SECONDS, SHUNNED_SECONDS, Seen
from omlx_cache_storage.remote.lookups import Asked, Inquiry, Lookups
from omlx_cache_storage.remote.store import RemoteStore
from omlx_cache_storage.stats import RemoteUsage

HEADER_BYTES = 16 << 10
"""The header and the envelope of most pages take about so much."""
HANGING = 3
"""For each connection so many more threads may hang in the store's client."""
NEARLY = 0.9
"""The client's own time-out is as long as a reader's, and may be seen first."""


class RemoteTier:
    """Pages on a `RemoteEngine`, which it owns. Any thread may call any method.

    Only `close` waits for the network as long as its client does; `ask`, `reading` and `meta` wait
    on other threads, as long as the options allow. Nothing raises on a lookup; `reading` and `meta`
    raise PageError alone. `_lock` guards `_held_bytes` and `_peak_bytes`, of values in flight, or
    received and not restored; `_answered` is when the store last answered a read.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        options: RemoteOptions,
        *,
        engine_name: str,
        where: str,
        events: EventLog = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine_name, self._where = engine_name, where
        self.store = store = RemoteStore(engine, options, events, clock)
        self._lookups = Lookups(store, options.lookup_seconds)
        connections, self._stalled_seconds = options.connections, options.read_seconds
        self._pool = ReaderPool(
            connections, "omlx-cache-remote-read", most=(1 + HANGING) * connections
        )
        self._lock = threading.Lock()
        self._held_bytes = self._peak_bytes = 0
        self._answered = 0.0

    @property
    def resting(self) -> str:
        return self.store.back_off.why

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        if self.store.closed or self.resting:
            return [None] * len(pages)
        return self.store.known.find_all(pages)

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        return set() if self.resting else self.store.known.tails_of(parents)

    def hidden(self, pages: Sequence[PageId]) -> Mapping[PageId, str]:
        hidden = self.store.known.why_absent(pages)
        if self.resting:
            hidden |= {
                page: errors.REMOTE_RESTING
                for page, info in zip(pages, self.store.known.find_all(pages), strict=True)
                if info is not None
            }
        return hidden

    def ask(self, inquiry: Inquiry, timeout: float | None = None) -> Asked:
        """Look up a chain's pages in the store. Waits at most `timeout` and `lookup_seconds`; with
        0 it begins the lookup and returns at once. The same inquiry in flight is joined, and a late
        answer becomes known all the same. Raises nothing."""
        if self.resting:
            return Asked(False, errors.REMOTE_RESTING)
        return self._lookups.ask(inquiry, timeout)

    @contextmanager
    def reading(self, page: PageId) -> Iterator[OpenPage]:
        """Open a page; raises PageError inside the `with` statement. Waits as long as something
        comes, but no longer than `read_seconds` without."""
        began = time.perf_counter()
        seen = self._seen(page)
        nbytes = seen.wire_bytes or seen.info.nbytes + HEADER_BYTES
        with self._judged(page, seen):
            received = self._take(Placed(seen.namespace, page), nbytes)
            self.store.tally.add(read_pages=1)
            said = received.envelope
            self.store.known.note(seen.namespace, page, said.info, said.wire_bytes, was_read=True)
            yield received
        if received.was_read:
            self.store.events.timings.observe(
                "remote_page_read_seconds", time.perf_counter() - began
            )

    def meta(self, page: PageId, nbytes: int = WIRE_BYTES + HEADER_BYTES) -> PageMeta:
        """Return the meta of a page's header, of which `nbytes` are read, and more if it is
        longer."""
        seen = self._seen(page)
        with self._judged(page, seen):
            received = self._take(Placed(seen.namespace, page), nbytes, is_head=True)
        return (
            received.meta if received.head_bytes <= nbytes else self.meta(page, received.head_bytes)
        )

    def _seen(self, page: PageId) -> Seen:
        seen = self.store.known.seen(page)
        if seen is None:
            raise PageNotSent(errors.REMOTE_LOST, "nothing is known of it any more")
        return seen

    @uninterrupted
    def _take(self, placed: Placed, nbytes: int, *, is_head: bool = False) -> ReceivedPage:
        """Return a page, or its header; waits as `reading` does."""
        self._hold(nbytes)
        try:
            future = self._pool.submit(self._read, placed, nbytes, is_head)
            if came(future, self._stalled_seconds):
                return future.result(0)
        except (RuntimeError, CancelledError):
            raise PageNotSent(
                errors.REMOTE_UNREACHABLE, "the remote tier is closed, or has no thread"
            ) from None
        finally:
            self._hold(-nbytes)
        future.cancel()
        self._pool.allow_one_more()
        raise self._unsent(RemoteError("timeout", "nothing came any more"))

    def _hold(self, nbytes: int) -> None:
        with self._lock:
            self._held_bytes += nbytes
            self._peak_bytes = max(self._peak_bytes, self._held_bytes)

    def _read(self, placed: Placed, nbytes: int, is_head: bool) -> ReceivedPage:
        try:
            received = self.store.read(placed, nbytes, is_head=is_head)
        except PageError:
            raise
        except Exception as error:
            raise self._unsent(known_error(error)) from None
        self._answered = time.monotonic()
        return received

    def _unsent(self, error: RemoteError) -> PageNotSent:
        """Note that the store failed, or even brought no reader anything for the longest wait;
        return the error for the reader."""
        silent = time.monotonic() - self._answered >= NEARLY * self._stalled_seconds
        self.store.failed(error, stalled=silent and error.reason == "timeout")
        return PageNotSent(errors.REMOTE_WORDS[error.reason], str(error))

    @contextmanager
    def _judged(self, page: PageId, seen: Seen) -> Iterator[None]:
        """Count a page that does not come or turns out to be bad, and remember that. The wait for
        it is none for this machine's disk."""
        try:
            with bounded_elsewhere():
                yield
        except PageError as error:
            is_bad, is_lost = (
                not isinstance(error, PageUnreadable),
                error.reason == errors.REMOTE_LOST,
            )
            if is_bad:
                self.store.note_bad(error)
            self.store.tally.add(
                lost_pages=is_lost, late_reads=error.reason == errors.REMOTE_TIMEOUT
            )
            if is_bad or (is_lost and self.store.known.seen(page) is not None):
                self.store.known.note_absent(
                    [page], error.reason, SHUNNED_SECONDS if is_bad else ABSENT_SECONDS
                )
            why = f"{page.key.hex()}-{page.group} {error.reason if is_bad else error}"
            self.store.events.note_tier(
                "removed" if is_bad else "failed", REMOTE, seen.namespace, why
            )
            raise

    def shun(self, page: PageId) -> None:
        """Take a page that proved useless here for absent, for a while, if it was read from there.
        One that never was may be sound there, and spoilt on a disk here."""
        seen = self.store.known.seen(page)
        if seen is not None and seen.was_read:
            self.store.known.note_absent([page], ForeignPage.reason, SHUNNED_SECONDS)

    def usage(self) -> RemoteUsage:
        why = self.store.back_off.trouble
        return RemoteUsage(
            self._engine_name,
            self._where,
            f"resting: {why}" if why else "ok",
            known_pages=len(self.store.known),
            rests=self.store.back_off.rests,
            held_bytes=self._held_bytes,
            peak_held_bytes=self._peak_bytes,
            **self.store.tally.usage(),
        )

    def close(self, timeout: float) -> bool:
        """Ask and read nothing more; False when something hangs for longer than `timeout`. May be
        called again."""
        self.store.closed = True
        deadline = time.monotonic() + timeout
        # Calls that hang in its connections fail with them.
        self.store.engine.close()
        ended = self._lookups.pool.stop(timeout)
        return self._pool.stop(max(0.0, deadline - time.monotonic())) and ended


def open_engine(address: RemoteAddress, options: RemoteOptions) -> RemoteEngine:
    """Return an engine, which connects when it is first asked: a dead store raises nothing here.

    Raises ExtraMissing without the client library, ValueError for files that the address names and
    that cannot be used.
    """
    check_extra(address, signs=options.secret is not None)
    if address.kind in ("s3", "file"):
        from omlx_cache_storage.remote.object_engine import ObjectEngine

        return ObjectEngine(address, options)
    from omlx_cache_storage.remote.redis_engine import ClusterEngine, RedisEngine

    return (ClusterEngine if address.kind == "cluster" else RedisEngine)(address, options)


def open_tier(
    address: RemoteAddress, options: RemoteOptions, events: EventLog = SILENT
) -> RemoteTier:
    """Return the tier on the store at an address; sends nothing yet. Raises what `open_engine`
    does."""
    return RemoteTier(
        open_engine(address, options),
        options,
        engine_name=address.kind,
        where=address.shown,
        events=events,
    )
