"""Pages in a store that other machines use too: found by asking, read ahead, written whole.

What is known of the store is what was asked of it lately. It evicts by itself, so nothing of what
other tiers do about that is done here: no page is touched, held or demoted.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from omlx_cache_storage.errors import (
    CorruptPage,
    ForeignPage,
    PageError,
    PageNotSent,
    PageUnreadable,
    UndecodablePage,
)
from omlx_cache_storage.event_kinds import Kind
from omlx_cache_storage.events import SILENT, EventLog
from omlx_cache_storage.histograms import Histogram
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import REMOTE, Page, PageId, PageInfo, PageMeta, Placed, Tail
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.asking import Asking
from omlx_cache_storage.remote.circuit import Circuit
from omlx_cache_storage.remote.coming import TORN, Expected, Wanted, length_said_by
from omlx_cache_storage.remote.engine import RemoteEngine, RemoteError, known_error
from omlx_cache_storage.remote.entry import RemoteEntry
from omlx_cache_storage.remote.inquiries import Inquiries
from omlx_cache_storage.remote.inquiry import Asked, Inquiry
from omlx_cache_storage.remote.keys import RemoteKeys
from omlx_cache_storage.remote.knowledge import SHUNNED_SECONDS, SPOILT, Knowledge, Seen
from omlx_cache_storage.remote.link import Link
from omlx_cache_storage.remote.names import RemoteNames
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.reads import RemoteReads
from omlx_cache_storage.remote.received import ReceivedPage
from omlx_cache_storage.remote.tally import RemoteTally
from omlx_cache_storage.remote.unmanaged import Unmanaged
from omlx_cache_storage.remote.window import WINDOW_BYTES
from omlx_cache_storage.remote.writes import RemoteWrites
from omlx_cache_storage.stats import RemoteUsage
from omlx_cache_storage.tier import OpenPage, WriteResult

HEADER_BYTES = 4096
"""More than the header and the envelope of most pages take."""


class RemoteTier(Unmanaged):
    """A `Tier` on a `RemoteEngine`, which it owns. Any thread may call any method.

    Only `write`, `present`, `discard`, `check` and `close` wait for the network as long as its
    client does; `ask` and `reading` wait on other threads, as long as the options allow. Nothing
    raises on a look-up; `reading` raises PageError alone. Mutable state lies in the parts, which
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
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._engine = engine
        self._engine_name, self._where = engine_name, where
        self._events = events
        self._names = RemoteNames(options.prefix, options.architecture)
        self._keys = RemoteKeys(options.secret, encrypts=options.encrypts)
        self._knowledge = Knowledge(clock)
        self._tally = RemoteTally()
        self._link = Link()
        self._closed = False
        self._circuit = Circuit(engine.ping, changed=self._changed)
        self._inquiries = Inquiries(self._answer, options.lookup_seconds, self._late)
        self._writes = RemoteWrites(
            engine, self._names, self._keys, self._knowledge, packs=options.packs
        )
        self._reads = RemoteReads(
            engine,
            options.connections,
            options.read_seconds,
            failed=self._failed,
            stalled=self._stalled,
            came=self._came,
            measured=self._link.note_read,
            window_bytes=window_bytes,
        )

    # What is known.

    @property
    def resting(self) -> str:
        """Why the store is left alone now, "" when it is not."""
        return self._circuit.why

    def info(self, page: PageId) -> PageInfo | None:
        """Return what is known of a page; nothing while the store is left alone."""
        (found,) = self.find_all([page])
        return found

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        if self._circuit.why or self._closed:
            return [None] * len(pages)
        return self._knowledge.find_all(pages)

    def tails(self, parent: BlockKey) -> set[Tail]:
        return self.tails_of([parent])

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        return set() if self._circuit.why else self._knowledge.tails_of(parents)

    def hidden(self, pages: Sequence[PageId]) -> Mapping[PageId, str]:
        """Return those of the pages that the store has and that `info` is silent about, with the
        word for why: it is left alone, or they were not what they should be."""
        hidden = self._knowledge.why_absent(pages)
        if self._circuit.why:
            there = zip(pages, self._knowledge.find_all(pages), strict=True)
            hidden |= {page: reasons.RESTING for page, info in there if info is not None}
        return hidden

    def ask(self, inquiry: Inquiry, timeout: float | None = None) -> Asked:
        """Find out what the store has of a chain. Waits at most `timeout` and `lookup_seconds`;
        with 0 it begins that and returns at once. The same inquiry under way is joined, and a late
        answer becomes known all the same. Raises nothing."""
        if self._closed:
            return Asked(False, reasons.UNREACHABLE)
        if self._circuit.why:
            return Asked(False, reasons.RESTING)
        return self._inquiries.ask(inquiry, timeout)

    # Reading.

    def expect(self, pages: Sequence[PageId]) -> Expected:
        """Begin to read those of the pages that are known here, in this order; returns at once.
        They come within a window of bytes until they are taken by `reading`, or `close`."""
        if self._closed or self._circuit.why:
            return self._reads.expect(())
        known = [(page, self._knowledge.seen(page)) for page in pages]
        return self._reads.expect([self._wanted(page, seen) for page, seen in known if seen])

    @contextmanager
    def reading(self, page: PageId) -> Iterator[OpenPage]:
        """Open a page; raises PageError inside the `with` statement. Waits as long as something
        comes, but no longer than `read_seconds` without."""
        began = time.perf_counter()
        seen = self._known(page)
        received = self._received(page, seen)
        waited = time.perf_counter() - began
        self._tally.add(read_pages=1)
        self._knowledge.note_read(page)
        with self._judged(page, seen):
            yield received
        if received.was_read:
            self._tally.timings.observe("remote_page_read_seconds", waited + received.seconds)

    def meta(self, page: PageId) -> PageMeta:
        """Return what a page's header says; raises PageError as `reading` does. The page, which has
        come for that, stays a while for whoever reads it."""
        return self._received(page, self._known(page), again=True).meta

    def _known(self, page: PageId) -> Seen:
        seen = self._knowledge.seen(page)
        if seen is None:
            raise PageNotSent(reasons.LOST, "nothing is known of it any more")
        return seen

    def _received(self, page: PageId, seen: Seen, *, again: bool = False) -> ReceivedPage:
        if self._circuit.why and not self._reads.is_expected(page):
            raise PageNotSent(reasons.RESTING, self._circuit.why)
        try:
            value = self._reads.take(self._wanted(page, seen), again=again)
        except PageUnreadable as error:
            self._not_read(page, seen, str(error))
            raise
        if seen.wire_bytes and length_said_by(value[0]) not in (0, seen.wire_bytes):
            # Another machine replaced it by one that holds more.
            self._knowledge.forget([page])
            self._not_read(page, seen, f"{reasons.LOST}: it was replaced")
            raise PageNotSent(reasons.LOST, "it was replaced since it was asked for")
        bound = self._names.bound(seen.namespace, page)
        with self._judged(page, seen):
            return ReceivedPage(bound, seen.namespace, page, value, self._keys)

    @contextmanager
    def _judged(self, page: PageId, seen: Seen) -> Iterator[None]:
        """Know a page that turns out to be bad for what it is."""
        try:
            yield
        except PageError as error:
            self._bad(error)
            self._knowledge.note_absent([page], error.reason, SHUNNED_SECONDS)
            self._note("removed", page, seen, error.reason)
            raise

    def _not_read(self, page: PageId, seen: Seen, why: str) -> None:
        if why.startswith(reasons.LOST):
            self._tally.add(lost_pages=1)
            if why.endswith(TORN):
                # Not asked for again, nor taken for present: whoever computes it writes it anew.
                self._knowledge.note_absent([page], CorruptPage.reason, SHUNNED_SECONDS)
            else:
                self._knowledge.note_absent([page], reasons.LOST)
        elif why.startswith(reasons.TIMEOUT):
            self._tally.add(late_reads=1)
        self._note("failed", page, seen, why)

    def _wanted(self, page: PageId, seen: Seen) -> Wanted:
        name = self._names.page(seen.namespace, page)
        return Wanted(page, name, seen.wire_bytes, seen.info.nbytes + HEADER_BYTES)

    # Writing.

    def present(self, pages: Sequence[Placed]) -> list[PageInfo | None]:
        """Return what the store has of each page, by one question; raises RemoteError."""
        with self._asked():
            found = self._writes.present(pages)
        self._tally.add(present_pages=sum(one is not None for one in found))
        return found

    def write(self, page: Page) -> WriteResult:
        """Publish a page whole or not at all, packed if it is dense and that pays; raises
        RemoteError, also while the store is left alone. A page that is stored packed is taken as it
        is. `present`: the store has one that holds as much. `refused`: one with another secret.
        `busy`: another machine is writing it, and may have died of it: try again in a while."""
        with self._asked():
            result, nbytes = self._writes.write(page)
        if result == "written":
            self._tally.add(written_pages=1, written_bytes=nbytes)
            self._events.note_page("stored", REMOTE, page.meta)
        elif result == "present":
            self._tally.add(present_pages=1)
        return result

    def is_spoilt(self, page: PageId) -> bool:
        """Return whether a page was read lately, and was damaged or gone."""
        return self._knowledge.why_absent([page]).get(page) in SPOILT

    def discard(self, pages: Iterable[PageId]) -> int:
        """Delete pages that are known here, for every machine; return how many there were. Where
        the store refuses they are forgotten all the same."""
        found = [(page, seen) for page in pages if (seen := self._knowledge.seen(page))]
        names = [self._names.page(seen.namespace, page) for page, seen in found]
        if names and not self._closed:
            with suppress(RemoteError), self._asked():
                self._engine.delete(names)
        for page, seen in found:
            self._note("removed", page, seen, "")
        return self._knowledge.note_absent([page for page, _ in found])

    def shun(self, page: PageId) -> None:
        """Take a page that proved useless here for absent, for a while, if it was read from there;
        it stays where it is. One that never was may be sound there, and spoilt on a disk here."""
        if self._knowledge.was_read(page):
            self._knowledge.note_absent([page], ForeignPage.reason, SHUNNED_SECONDS)

    def forget(self, pages: Iterable[PageId]) -> int:
        """Know nothing of pages any more, which stay where they are; return how many were known."""
        return self._knowledge.forget(pages)

    # How it is.

    def entries(self) -> Sequence[RemoteEntry]:
        """Return every page that is known of, the longest known first."""
        return [RemoteEntry(page, *seen[:2]) for page, seen in self._knowledge.entries()]

    def usage(self) -> RemoteUsage:
        return RemoteUsage(
            self._engine_name,
            self._where,
            f"resting: {self._circuit.why}" if self._circuit.why else "ok",
            known_pages=len(self._knowledge),
            rests=self._circuit.rests,
            latency_seconds=self._link.latency_seconds,
            bytes_per_second=self._link.bytes_per_second,
            errors=self._tally.errors(),
            held_bytes=self._reads.held_bytes,
            peak_held_bytes=self._reads.peak_bytes,
            **self._tally.counts(),
        )

    def timings(self) -> Mapping[str, Histogram]:
        """Return how long look-ups that were answered took, and pages that came whole."""
        return self._tally.timings.observed()

    @property
    def latency_seconds(self) -> float:
        return self._link.latency_seconds

    def seconds_per_byte(self) -> float | None:
        """Return what a byte takes from there, None before that is known."""
        rate = self._link.bytes_per_second
        return 1 / rate if rate else None

    def check_integrity(self) -> None:
        self._reads.check_integrity()

    def check(self) -> None:
        """Return once the store answers; raises RemoteError."""
        self._engine.ping()

    def close(self, timeout: float) -> bool:
        """Ask and read nothing more; False when something hangs for longer than `timeout`. May be
        called again."""
        self._closed = True
        deadline = time.monotonic() + timeout
        # What hangs in its connections fails with them.
        self._engine.close()
        ended = True
        for part in (self._inquiries, self._reads, self._circuit):
            ended &= part.close(max(0.0, deadline - time.monotonic()))
        return ended

    # Called by the parts, on their threads.

    def _answer(self, inquiry: Inquiry) -> Asked:
        """Ask, on a thread that may hang."""
        if self._circuit.why:
            return Asked(False, reasons.RESTING)
        asking = Asking(
            self._engine,
            self._names,
            self._keys,
            self._knowledge,
            inquiry,
            self._bad,
            self._answered,
        )
        began = time.perf_counter()
        try:
            asking.run()
            trouble = asking.trouble
        except Exception as error:
            # A client with a bug is a store that fails.
            known = known_error(error)
            trouble = reasons.reason_of(known.reason)
            self._failed(known)
        phases, asked, found = asking.tally
        self._tally.add(lookups=1, lookup_phases=phases, asked_pages=asked, found_pages=found)
        if phases and trouble in ("", reasons.FOREIGN):
            self._tally.timings.observe("remote_lookup_seconds", time.perf_counter() - began)
        return Asked(asking.news, trouble)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Let the circuit know how it went."""
        if self._closed:
            raise RemoteError("refused", "the remote tier is closed")
        if self._circuit.why:
            raise RemoteError("refused", f"the store is left alone: {self._circuit.why}")
        try:
            yield
        except RemoteError as error:
            self._failed(error)
            raise
        self._circuit.succeeded()

    def _bad(self, error: PageError) -> None:
        # One that only this process cannot decode is sound.
        self._tally.add(bad_pages=not isinstance(error, UndecodablePage))

    def _answered(self, seconds: float) -> None:
        self._link.note_trip(seconds)
        self._circuit.succeeded()

    def _came(self, nbytes: int) -> None:
        self._tally.add(read_bytes=nbytes)
        self._circuit.succeeded(read=True)

    def _failed(self, error: RemoteError) -> None:
        if not self._closed:
            word = reasons.reason_of(error.reason)
            self._tally.note_error(word)
            self._circuit.failed(f"{word}: {error}")

    def _late(self) -> None:
        self._tally.add(late_lookups=1)
        if not self._closed:
            self._circuit.failed(f"{reasons.TIMEOUT}: a look-up was not answered in time")

    def _stalled(self) -> None:
        if not self._closed:
            self._tally.note_error(reasons.TIMEOUT)
            self._circuit.trip(f"{reasons.TIMEOUT}: a read brought nothing any more")

    def _changed(self, why: str) -> None:
        self._inquiries.be_patient()
        self._events.note_tier(
            "failed" if why else "resynced", REMOTE, detail=why or "answers again"
        )

    def _note(self, kind: Kind, page: PageId, seen: Seen, why: str) -> None:
        self._events.note_tier(kind, REMOTE, seen.namespace, f"{page.key.hex()}-{page.group} {why}")
