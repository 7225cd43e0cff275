"""A remote store's pages by their names: looked up, read and written unless the tier backs off, and
the counts of that."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from omlx_cache_storage import errors
from omlx_cache_storage.errors import (
    CorruptPage,
    ForeignPage,
    PageError,
    PageNotSent,
    UndecodablePage,
)
from omlx_cache_storage.events import EventLog
from omlx_cache_storage.format.packing import unwrapped
from omlx_cache_storage.measures import Intervals
from omlx_cache_storage.page import (
    REMOTE,
    Buffer,
    Page,
    PageId,
    PageInfo,
    PageMeta,
    Placed,
    Tail,
    WriteResult,
)
from omlx_cache_storage.remote.engine import (
    BackOff,
    Part,
    RemoteEngine,
    RemoteError,
    RemoteOptions,
    cut,
    known_error,
)
from omlx_cache_storage.remote.envelope import (
    TAILS,
    WIRE_BYTES,
    ReceivedPage,
    RemoteKeys,
    RemoteNames,
    TailMember,
    read_envelope,
    seal,
)
from omlx_cache_storage.remote.knowledge import SHUNNED_SECONDS, Knowledge

RECENT = 32
LARGE_BYTES = 256 * 1024
"""Reads of less say more of the round trip than of the rate."""


class RemoteStore:
    """Pages of an engine. Any thread may call; `look`, `present`, `read` and `write` wait for the
    network as long as the engine's client does, and raise RemoteError, also during a back-off. The
    store's answers become known. `closed` is set once."""

    def __init__(
        self,
        engine: RemoteEngine,
        options: RemoteOptions,
        events: EventLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.names = RemoteNames(options.prefix, options.architecture)
        self.keys = RemoteKeys(options.secret, encrypts=options.encrypts)
        self.known = Knowledge(clock)
        self.tally = RemoteTally()
        self.back_off = BackOff(
            lambda why: self.events.note_tier(
                "failed" if why else "resynced", REMOTE, detail=why or "answers again"
            )
        )
        self.closed = False
        self._packs = options.packs
        self.events = events

    def look(self, pages: Sequence[Placed], sets: Sequence[Placed] = ()) -> list[list[str]]:
        names, asked = ([self.names.page(*one) for one in some] for some in (pages, sets))
        with self._asked():
            began = time.perf_counter()
            heads, members = self.engine.look(names, WIRE_BYTES, asked)
            self.tally.trips.append(time.perf_counter() - began)
        for placed, head in zip(pages, heads, strict=True):
            self._describe(placed, head)
        return members

    def _describe(self, placed: Placed, head: bytes | None) -> None:
        why = ""
        try:
            if head is not None:
                said = read_envelope(self.names.bound(*placed), head, self.keys)
                self.known.note(*placed, said.info, said.wire_bytes)
                return
        except PageError as error:
            self.note_bad(error)
            why = errors.REMOTE_FOREIGN if isinstance(error, ForeignPage) else error.reason
        self.known.note_absent([placed.page], why)

    def present(self, pages: Sequence[Placed]) -> list[PageInfo | None]:
        """Return the store's info of each page, by one request about the pages that it was not seen
        to have. A page that was read and found damaged counts as absent, though its first bytes
        look well."""
        unsure = [placed for placed in pages if not self._is_sure(placed.page)]
        if unsure:
            self.look(unsure)
            found = self.known.find_all([placed.page for placed in unsure])
            self.tally.add(present_pages=sum(info is not None for info in found))
        return self.known.find_all([placed.page for placed in pages])

    def _is_sure(self, page: PageId) -> bool:
        seen = self.known.seen(page)
        return self._is_damaged(page) if seen is None else seen.wire_bytes > 0

    def _is_damaged(self, page: PageId) -> bool:
        return self.known.why_absent([page]).get(page) == CorruptPage.reason

    def write(self, page: Page) -> WriteResult | Literal["busy"]:
        """Publish a page whole or not at all, packed if it is dense and that pays. `present`: the
        store has one that holds as much. `refused`: one with another secret, or it had one a moment
        ago. `busy`: another machine is writing it, and may have died of it: try again in a
        while."""
        meta = unwrapped(page.meta)
        if self.known.is_foreign(meta.id):
            # Nothing is sent to learn that again.
            return "refused"
        placed = Placed(meta.namespace, meta.id)
        name = self.names.page(*placed)
        pieces = seal(self.names.bound(*placed), page, self.keys, packs=self._packs)
        nbytes = sum(memoryview(piece).nbytes for piece in pieces)
        parts = cut(pieces, self.engine.part_bytes)
        replace = self._is_damaged(meta.id)
        if not self._write(name, parts, replace=replace):
            if replace:
                return "busy"
            self.look([placed])
            seen = self.known.seen(meta.id)
            if seen is not None and seen.info.held >= meta.held:
                self._add_tail(meta, seen.wire_bytes)
                self.tally.add(present_pages=1)
                return "present"
            if self.known.is_foreign(meta.id):
                return "refused"
            if not self._write(name, parts, replace=True):
                return "busy"
        self.known.note(*placed, PageInfo(meta.position, meta.held, meta.nbytes, REMOTE), nbytes)
        self._add_tail(meta, nbytes)
        self.tally.add(written_pages=1, written_bytes=nbytes)
        self.events.note_page("stored", REMOTE, page.meta)
        return "written"

    def _write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        with self._asked():
            return self.engine.write(name, parts, replace=replace)

    def _add_tail(self, meta: PageMeta, nbytes: int) -> None:
        """Have a page that ends inside a block found by the boundary before. Of one that was there
        already it is said again: its writer may not have come to that."""
        if not meta.tail:
            return
        member = TailMember(meta.key, meta.position, meta.held, meta.nbytes, nbytes, meta.group)
        with self._asked():
            self.engine.add(
                self.names.page(meta.namespace, PageId(meta.parent, TAILS)), member.text()
            )
        self.known.note_tails(meta.parent, [Tail(meta.position, meta.group)])

    def read(self, placed: Placed, nbytes: int, *, is_head: bool = False) -> ReceivedPage:
        """Read a page whose value has about so many bytes, or its first ones, for its header.
        Raises PageError too: PageNotSent for a value that is not there whole. The caller notes a
        failure."""
        self.back_off.enter()
        began = time.monotonic()
        try:
            value = self._parts_of(placed, nbytes, is_head)
        finally:
            self.back_off.left()
        self.back_off.succeeded(read=True)
        there = [part for part in value if part is not None]
        came = sum(memoryview(part).nbytes for part in there)
        self.tally.add(read_bytes=came)
        self.tally.reads.append((began, time.monotonic(), came))
        if value[0] is None:
            raise PageNotSent(errors.REMOTE_LOST, "it was evicted")
        if len(there) < len(value):
            # Its head looks well: not asked for again, nor taken for present, so that the
            # next commit of it writes it anew.
            self.known.note_absent([placed.page], CorruptPage.reason, SHUNNED_SECONDS)
            raise PageNotSent(errors.REMOTE_LOST, "a part of it is gone")
        return ReceivedPage(
            self.names.bound(*placed), *placed, there, self.keys, asked=nbytes if is_head else 0
        )

    def _parts_of(self, placed: Placed, nbytes: int, is_head: bool) -> list[Buffer | None]:
        """Read as many parts as the first one says that there are: the page may have been replaced.
        Parts are values, of which the store evicts each by itself."""
        name = self.names.page(*placed)
        if is_head:
            return [*self.engine.look([name], nbytes)[0]]
        size = self.engine.part_bytes or nbytes
        value = self.engine.read(_cut(name, 0, nbytes, size))
        if value[0] is not None:
            said = read_envelope(self.names.bound(*placed), value[0], self.keys).wire_bytes
            if said > len(value) * size:
                value += self.engine.read(_cut(name, len(value) * size, said, size))
            del value[-(-said // size) :]
        return value

    def note_bad(self, error: PageError) -> None:
        # One that only this process cannot decode is sound.
        self.tally.add(bad_pages=not isinstance(error, UndecodablePage))

    def failed(self, error: RemoteError, *, stalled: bool = False) -> None:
        if not self.closed and error.reason != "resting":
            word = errors.REMOTE_WORDS[error.reason]
            self.tally.note_error(word)
            self.back_off.failed(f"{word}: {error}", stalled=stalled)

    def note_late_lookup(self) -> None:
        """Note a lookup that took the longest wait of a request: one is enough."""
        self.tally.add(late_lookups=1)
        if not self.closed:
            self.back_off.failed(
                f"{errors.REMOTE_TIMEOUT}: a lookup was not answered in time", at_once=True
            )

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Ask the store, unless the tier backs off, and note how it went; raises RemoteError."""
        if self.closed:
            raise RemoteError("refused", "the remote tier is closed")
        self.back_off.enter()
        try:
            yield
        except Exception as error:
            # A client with a bug is a store that fails.
            known = known_error(error)
            self.failed(known)
            raise known from None
        self.back_off.succeeded()


def _cut(name: str, start: int, nbytes: int, size: int) -> list[Part]:
    return [Part(name, at // size, at, min(size, nbytes - at)) for at in range(start, nbytes, size)]


class RemoteTally:
    """Counts of a remote tier, by the names of `RemoteUsage`, and the times of the latest answers.

    `_lock` guards the counts. `trips` and `reads`, the times at which reads began and ended, and
    their bytes, may be appended to and copied by any thread: both are atomic.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self.trips: deque[float] = deque(maxlen=RECENT)
        self.reads: deque[tuple[float, float, int]] = deque(maxlen=RECENT)

    def add(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    def note_error(self, reason: str) -> None:
        with self._lock:
            self._errors[reason] += 1

    def usage(self) -> dict[str, Any]:
        """Return the counts, the shortest of the latest round trips, and the rate of the latest
        reads together, while some were in flight. A missing figure is 0."""
        busy, reads = Intervals(), list(self.reads)
        for began, ended, _ in reads:
            busy.add(began, ended)
        nbytes = sum(nbytes for _, _, nbytes in reads)
        with self._lock:
            is_rate = nbytes >= LARGE_BYTES and busy.seconds > 0
            return {
                **self._counts,
                "errors": dict(self._errors),
                "latency_seconds": min(list(self.trips), default=0.0),
                "bytes_per_second": nbytes / busy.seconds if is_rate else 0.0,
            }
