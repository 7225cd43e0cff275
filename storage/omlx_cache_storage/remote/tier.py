"""Pages in a store that other machines use too: found by look-ups, read ahead, written whole.

What is known of the store is what it answered lately. It evicts by itself, so nothing is done here
of what other tiers do about that.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from omlx_cache_storage.errors import (
    CorruptPage,
    ForeignPage,
    PageError,
    PageNotSent,
    UndecodablePage,
)
from omlx_cache_storage.events import SILENT, EventLog
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import (
    REMOTE,
    Buffer,
    OpenPage,
    Page,
    PageId,
    PageInfo,
    PageMeta,
    Placed,
    Tail,
    WriteResult,
)
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import (
    BackOff,
    Part,
    RemoteEngine,
    RemoteError,
    RemoteOptions,
    check_extra,
    known_error,
)
from omlx_cache_storage.remote.envelope import WIRE_BYTES, RemoteKeys, RemoteNames, length_said_by
from omlx_cache_storage.remote.knowledge import (
    SHUNNED_SECONDS,
    SPOILT,
    Knowledge,
    RemoteStore,
    Seen,
)
from omlx_cache_storage.remote.lookups import Asked, Asking, Inquiry, Lookups
from omlx_cache_storage.remote.reads import (
    AHEAD_BYTES,
    Expected,
    RemoteReads,
    RemoteTally,
    Value,
    WantedValue,
)
from omlx_cache_storage.remote.received import ReceivedPage
from omlx_cache_storage.stats import Kind, RemoteUsage

HEADER_BYTES = 16 << 10
"""The header and the envelope of most pages take about so much."""
FIRST_BYTES = 8 << 20
"""What is read at first of a value of unknown length, where any stretch can be read."""
TORN = "a part of it is gone"
"""Said of a value whose head may be there still, which is all that a look-up sees."""


class RemoteTier:
    """Pages on a `RemoteEngine`, which it owns. Any thread may call any method.

    Only `write`, `present`, `check` and `close` wait for the network as long as its client does;
    `ask`, `reading` and `meta` wait on other threads, as long as the options allow. Nothing raises
    on a look-up; `reading` and `meta` raise PageError alone. Mutable state lies in the parts, which
    guard themselves; `_closed` is set once.
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
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        self._engine_name, self._where = engine_name, where
        self._events = events
        self._tally = RemoteTally()
        self._back_off = BackOff(self._changed)
        self._known = Knowledge(clock)
        self._store = RemoteStore(
            engine,
            RemoteNames(options.prefix, options.architecture),
            RemoteKeys(options.secret, encrypts=options.encrypts),
            self._known,
            options.packs,
            self._bad,
            self._answered,
        )
        self._closed = False
        self._lookups = Lookups(self._answer, options.lookup_seconds, self._late)
        self._reads = RemoteReads(
            self._read,
            options.connections,
            options.read_seconds,
            self._failed,
            ahead_bytes=ahead_bytes,
        )

    # What is known.

    @property
    def resting(self) -> str:
        """Why the store is left alone now, "" when it is not."""
        return self._back_off.why

    def info(self, page: PageId) -> PageInfo | None:
        """Return what is known of a page; nothing while the store is left alone."""
        return self.find_all([page])[0]

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        if self._closed or self.resting:
            return [None] * len(pages)
        return self._known.find_all(pages)

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        return set() if self.resting else self._known.tails_of(parents)

    def hidden(self, pages: Sequence[PageId]) -> Mapping[PageId, str]:
        """Return those of the pages that the store has and that `info` is silent about, with the
        word for why: it is left alone, or they were not what they should be."""
        hidden = self._known.why_absent(pages)
        if self.resting:
            there = zip(pages, self._known.find_all(pages), strict=True)
            hidden |= {page: reasons.RESTING for page, info in there if info is not None}
        return hidden

    def ask(self, inquiry: Inquiry, timeout: float | None = None) -> Asked:
        """Look up what the store has of a chain. Waits at most `timeout` and `lookup_seconds`; with
        0 it begins that and returns at once. The same inquiry in flight is joined, and a late
        answer becomes known all the same. Raises nothing."""
        if self._closed:
            return Asked(False, reasons.UNREACHABLE)
        if self.resting:
            return Asked(False, reasons.RESTING)
        return self._lookups.ask(inquiry, timeout)

    # Reading.

    def expect(self, pages: Sequence[PageId]) -> Expected:
        """Begin to read those of the pages that are known here, in this order; returns at once.
        So many of them come that memory holds them until `reading` takes them, or `close`."""
        if self._closed or self.resting:
            return self._reads.expect(())
        known = [(page, self._known.seen(page)) for page in pages]
        return self._reads.expect([self._wanted(page, seen) for page, seen in known if seen])

    @contextmanager
    def reading(self, page: PageId) -> Iterator[OpenPage]:
        """Open a page; raises PageError inside the `with` statement. Waits as long as something
        comes, but no longer than `read_seconds` without."""
        began = time.perf_counter()
        seen = self._seen(page)
        received = self._received(page, seen, self._wanted(page, seen))
        waited = time.perf_counter() - began
        self._tally.add(read_pages=1)
        self._known.note_read(page)
        with self._judged(page, seen):
            yield received
        if received.was_read:
            self._events.timings.observe("remote_page_read_seconds", waited + received.seconds)

    def meta(self, page: PageId) -> PageMeta:
        """Return what a page's header says; reads no more of it. Raises PageError as `reading`."""
        seen = self._seen(page)
        wanted = self._wanted(page, seen)
        nbytes = WIRE_BYTES + HEADER_BYTES
        while True:
            received = self._received(page, seen, wanted._replace(nbytes=nbytes, is_head=True))
            if received.head_bytes <= nbytes:
                return received.meta
            nbytes = received.head_bytes

    def _seen(self, page: PageId) -> Seen:
        seen = self._known.seen(page)
        if seen is None:
            raise PageNotSent(reasons.LOST, "nothing is known of it any more")
        return seen

    def _wanted(self, page: PageId, seen: Seen) -> WantedValue:
        name = self._store.names.page(seen.namespace, page)
        return WantedValue(page, name, seen.wire_bytes, seen.info.nbytes + HEADER_BYTES)

    def _received(self, page: PageId, seen: Seen, wanted: WantedValue) -> ReceivedPage:
        if self.resting and not self._reads.is_expected(page):
            raise PageNotSent(reasons.RESTING, self.resting)
        try:
            value = self._reads.take(wanted)
            if seen.wire_bytes and length_said_by(value[0]) not in (0, seen.wire_bytes):
                # Another machine replaced it by one that holds more.
                self._known.forget(page)
                raise PageNotSent(reasons.LOST, "it was replaced since it was asked for")
        except PageNotSent as error:
            is_lost = error.reason == reasons.LOST
            self._tally.add(lost_pages=is_lost, late_reads=error.reason == reasons.TIMEOUT)
            if str(error).endswith(TORN):
                # Not asked for again, nor taken for present: whoever computes it writes it anew.
                self._known.note_absent([page], CorruptPage.reason, SHUNNED_SECONDS)
            elif is_lost and self._known.seen(page) is not None:
                self._known.note_absent([page], reasons.LOST)
            self._note("failed", page, seen, str(error))
            raise
        bound = self._store.names.bound(seen.namespace, page)
        with self._judged(page, seen):
            asked = wanted.nbytes if wanted.is_head else 0
            return ReceivedPage(bound, seen.namespace, page, value, self._store.keys, asked=asked)

    @contextmanager
    def _judged(self, page: PageId, seen: Seen) -> Iterator[None]:
        """Know a page that turns out to be bad for what it is."""
        try:
            yield
        except PageError as error:
            self._bad(error)
            self._known.note_absent([page], error.reason, SHUNNED_SECONDS)
            self._note("removed", page, seen, error.reason)
            raise

    # Writing.

    def present(self, pages: Sequence[Placed]) -> list[PageInfo | None]:
        """Return what the store has of each page, by one question; raises RemoteError."""
        with self._asked():
            found = self._store.present(pages)
        self._tally.add(present_pages=sum(one is not None for one in found))
        return found

    def write(self, page: Page) -> WriteResult:
        """Publish a page whole or not at all, packed if it is dense and that pays; raises
        RemoteError, also while the store is left alone. A page that is stored packed is taken as it
        is. `present`: the store has one that holds as much. `refused`: one with another secret, or
        it had one a moment ago. `busy`: another machine is writing it, and may have died of it: try
        again in a while."""
        if self._store.is_foreign(page.meta.id):
            # Nothing is sent to learn that again.
            return "refused"
        with self._asked():
            result, nbytes = self._store.write(page)
            self._back_off.succeeded()
        if result == "written":
            self._tally.add(written_pages=1, written_bytes=nbytes)
            self._events.note_page("stored", REMOTE, page.meta)
        elif result == "present":
            self._tally.add(present_pages=1)
        return result

    def is_spoilt(self, page: PageId) -> bool:
        """Return whether a page was read lately, and was damaged or gone."""
        return self._known.why_absent([page]).get(page) in SPOILT

    def shun(self, page: PageId) -> None:
        """Take a page that proved useless here for absent, for a while, if it was read from there;
        it stays where it is. One that never was may be sound there, and spoilt on a disk here."""
        seen = self._known.seen(page)
        if seen is not None and seen.was_read:
            self._known.note_absent([page], ForeignPage.reason, SHUNNED_SECONDS)

    # How it is.

    def usage(self) -> RemoteUsage:
        why = self._back_off.trouble
        return RemoteUsage(
            self._engine_name,
            self._where,
            f"resting: {why}" if why else "ok",
            known_pages=len(self._known),
            rests=self._back_off.rests,
            held_bytes=self._reads.held_bytes,
            peak_held_bytes=self._reads.peak_bytes,
            **self._tally.usage(),
        )

    def check_integrity(self) -> None:
        self._reads.check_integrity()

    def close(self, timeout: float) -> bool:
        """Ask and read nothing more; False when something hangs for longer than `timeout`. May be
        called again."""
        self._closed = True
        deadline = time.monotonic() + timeout
        # What hangs in its connections fails with them.
        self._store.engine.close()
        ended = self._lookups.close(timeout)
        return self._reads.close(max(0.0, deadline - time.monotonic())) and ended

    # Called by the parts, on their threads.

    def _answer(self, inquiry: Inquiry) -> Asked:
        """Look up, on a thread that may hang."""
        asking = Asking(self._store, inquiry)
        began = time.perf_counter()
        try:
            with self._asked():
                asking.run()
            trouble = asking.trouble
        except RemoteError as error:
            trouble = reasons.reason_of(error.reason)
            if trouble == reasons.RESTING:
                return Asked(False, trouble)
        self._tally.add(
            lookups=1,
            lookup_phases=asking.phases,
            asked_pages=asking.asked,
            found_pages=asking.found,
        )
        if asking.phases and trouble in ("", reasons.FOREIGN):
            self._events.timings.observe("remote_lookup_seconds", time.perf_counter() - began)
        return Asked(asking.news, trouble)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Ask the store, unless it is left alone, and note a failure; raises RemoteError."""
        if self._closed:
            raise RemoteError("refused", "the remote tier is closed")
        self._back_off.enter()
        try:
            yield
        except Exception as error:
            # A client with a bug is a store that fails.
            known = known_error(error)
            self._failed(known)
            raise known from None
        self._back_off.left()

    def _answered(self, seconds: float) -> None:
        self._tally.note_trip(seconds)
        self._back_off.succeeded()

    def _read(self, wanted: WantedValue) -> Value:
        """Read a value, or its first bytes."""
        self._back_off.enter()
        nbytes = 0
        self._tally.begin_read()
        try:
            value = self._read_parts(wanted)
            there = [part for part in value if part is not None]
            nbytes = sum(memoryview(part).nbytes for part in there)
        finally:
            self._tally.end_read(nbytes)
            self._back_off.left()
        self._tally.add(read_bytes=nbytes)
        self._back_off.succeeded(read=True)
        if len(there) < len(value):
            # Parts are values, of which the store evicts each by itself.
            raise PageNotSent(reasons.LOST, TORN if value[0] is not None else "it was evicted")
        return there

    def _read_parts(self, wanted: WantedValue) -> "list[Buffer | None]":
        engine = self._store.engine
        if wanted.is_head:
            return [*engine.look([wanted.name], wanted.nbytes)[0]]
        size = engine.part_bytes or wanted.nbytes or FIRST_BYTES
        value = engine.read(_parts(wanted.name, 0, wanted.nbytes or size, size))
        first = value[0]
        if not wanted.nbytes and first is not None and memoryview(first).nbytes >= size:
            # It was not known how long it is.
            value += engine.read(_parts(wanted.name, size, length_said_by(first), size))
        return value

    def _bad(self, error: PageError) -> None:
        # One that only this process cannot decode is sound.
        self._tally.add(bad_pages=not isinstance(error, UndecodablePage))

    def _failed(self, error: RemoteError, stalled: bool = False) -> None:
        if not self._closed and error.reason != "resting":
            word = reasons.reason_of(error.reason)
            self._tally.note_error(word)
            self._back_off.failed(f"{word}: {error}", stalled=stalled)

    def _late(self) -> None:
        self._tally.add(late_lookups=1)
        if not self._closed:
            why = f"{reasons.TIMEOUT}: a look-up was not answered in time"
            self._back_off.failed(why, at_once=True)

    def _changed(self, why: str) -> None:
        self._events.note_tier(
            "failed" if why else "resynced", REMOTE, detail=why or "answers again"
        )

    def _note(self, kind: Kind, page: PageId, seen: Seen, why: str) -> None:
        self._events.note_tier(kind, REMOTE, seen.namespace, f"{page.key.hex()}-{page.group} {why}")


def _parts(name: str, start: int, nbytes: int, size: int) -> list[Part]:
    """Cut what lies behind `start` of a value of so many bytes."""
    return [Part(name, at // size, at, min(size, nbytes - at)) for at in range(start, nbytes, size)]


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
    """Return the tier on the store at an address; asks nobody yet.

    Raises what `open_engine` does, and nothing for a store that does not answer.
    """
    engine = open_engine(address, options)
    return RemoteTier(engine, options, engine_name=address.kind, where=address.shown, events=events)
