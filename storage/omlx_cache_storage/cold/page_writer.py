"""Writing one page: decided, given room, staged under a temporary name, published."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping

from omlx_cache_storage.breaker import NO_ROOM
from omlx_cache_storage.cold.deletion import Deleter
from omlx_cache_storage.cold.disk import SMALL_FILE_BYTES, abandon, temporary_name
from omlx_cache_storage.cold.eviction import FILE_SLACK_BYTES, Evictor, HeldEnough, Writing
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.index import Candidate, Index
from omlx_cache_storage.cold.ledger import LedgerBusy
from omlx_cache_storage.cold.ledger_records import Added, Cancelled
from omlx_cache_storage.cold.shared_limits import DailyWrites, SharedLimits
from omlx_cache_storage.cold.sharing import DirectoryPart, Sharing
from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.names import StoredPage, name_of
from omlx_cache_storage.page import Page, PageId, WriteResult

NO_ROOM_TRIES = 3
"""How often room is made for a page that the disk had none for, each time twice as much."""
ELSEWHERE_SECONDS = 1.0
"""How long to wait for a page that another process is writing."""
_PAUSE_SECONDS = 0.002


class PageWriter(DirectoryPart):
    """Writes pages, whole or not at all. Belongs to one thread at a time; the index's lock guards
    `written` and `rewritten` (bytes). `load` indexes the directory anew, and raises OSError."""

    def __init__(
        self,
        index: Index,
        files: PageFiles,
        sharing: Sharing,
        deleter: Deleter,
        evictor: Evictor,
        limits: SharedLimits,
        load: Callable[[], None],
        encode: Callable[[Page], Page] | None,
        daily_writes: DailyWrites,
    ) -> None:
        super().__init__(index, files, sharing)
        self._deleter = deleter
        self._evictor = evictor
        self._limits = limits
        self._load = load
        self._encode = encode
        self.daily_writes = daily_writes
        self.written = 0
        self.rewritten = 0

    def write(self, page: Page, time_ns: int, document: Mapping[str, object]) -> WriteResult:
        """Publish a page whole or not at all, and return the result.

        Evicts only pages before this one in the order: never its chain's root for its deep end.
        Raises OSError when the disk fails, for want of room only after some pages were evicted;
        ValueError for a payload of another size than its tensors. Nothing is left behind then. An
        unreadable page is written again, except one that only this process cannot decode. Waits a
        moment for a page that a peer process is writing. Writer thread only.
        """
        if not self._sharing.follows:
            self._load()
        candidate = Candidate(page.meta.id, page.meta.position, time_ns)
        decided = self.decided(candidate, page.meta.held)
        if decided is not None:
            return decided
        if self._encode is not None:
            page = self._encode(page)
        meta = page.meta
        size = memoryview(page.payload).nbytes
        if size != meta.nbytes:
            raise ValueError(f"a payload of {size} bytes for tensors of {meta.nbytes}")
        pieces = [encode_header(meta, payload_checksum(page.payload)), page.payload]
        size += len(pieces[0])
        # The bytes that a file takes of a disk, as far as they are known before it is written.
        rationed = -(-size // SMALL_FILE_BYTES) * SMALL_FILE_BYTES
        if self.daily_writes.limit_bytes and not self.daily_writes.take(rationed):
            return "rationed"
        wanted = StoredPage(meta.namespace, name_of(meta), size + FILE_SLACK_BYTES)
        path = self._index.path(wanted)
        shard = os.path.dirname(path)
        temporary = temporary_name(shard)
        writing = Writing(
            candidate,
            wanted,
            meta.parent,
            document,
            pieces,
            shard,
            temporary,
            os.path.basename(temporary),
            path,
        )
        result: WriteResult = "full"
        began = time.perf_counter()
        try:
            result = self._place(writing)
            return result
        except OSError as error:
            with self._index.lock:
                self._index.health.fail_write(error)
            raise
        finally:
            if writing.reserved:
                self._give_back(writing)
            writing.opened.close()
            if result == "written":
                self._index.events.timings.observe(
                    "page_write_seconds", time.perf_counter() - began
                )
            else:
                self.daily_writes.give_back(rationed)

    def decided(self, candidate: Candidate, held: int) -> WriteResult | None:
        """Return what `write` answers at once for a page that holds so many tokens, None when room
        must be made for it."""
        with self._index.lock:
            known = self.known(candidate.page, held)
            if known is not None:
                return known
            if (
                self._index.refused_rank is not None
                and self._index.clock.now() >= self._index.refused_until_ns
            ):
                self._index.refused_rank = None
            if self._index.refused_rank is not None and candidate.rank < self._index.refused_rank:
                self._evictor.refused += 1
                return "refused"
        if self.daily_writes.limit_bytes and not self.daily_writes.take(0):
            return "rationed"
        return None

    def known(self, page: PageId, held: int) -> WriteResult | None:
        old = self._index.contents.get(page)
        if old is not None and old.undecodable:
            return "undecodable"
        has = old is not None and old.held >= held and not self._index.health.is_unreadable(page)
        return "present" if has else None

    def _place(self, writing: Writing) -> WriteResult:
        """Make room and publish, in a few tries if the disk has no room after all; the caller
        releases a reservation that was not published."""
        wanted, candidate = writing.wanted, writing.candidate
        # A disk that eviction did not help the last time is not emptied for nothing.
        with self._index.lock:
            tries = 1 if self._index.health.trouble else NO_ROOM_TRIES
        more, deadline, cleared = wanted.cost, time.monotonic() + ELSEWHERE_SECONDS, False
        while True:
            if self._index.doomed and not writing.reserved:
                self._deleter.retry()
            try:
                with self._sharing.changing():
                    self._limits.heed()
                    waits = self._sharing.is_elsewhere(wanted) and time.monotonic() < deadline
                    refusal = None if waits else self._begin(writing)
                if refusal is not None:
                    return refusal
                if not waits:
                    return self._publish(writing)
            except HeldEnough:
                continue
            except LedgerBusy:
                # More changed than could be followed, or a peer process still holds the directory.
                if not self._sharing.fell_behind:
                    raise
                self._load()
                continue
            except OSError as error:
                if error.errno == errno.ENOENT and not cleared:
                    # Its namespace was cleared meanwhile, directory and all.
                    cleared = True
                    continue
                if error.errno not in NO_ROOM or not tries:
                    raise
                victims = self._evictor.give_way(more, candidate)
                if not victims.pages:
                    if victims.outranked:
                        return "refused"
                    raise
                more, tries = 2 * more, tries - 1
                continue
            time.sleep(_PAUSE_SECONDS)

    def _begin(self, writing: Writing) -> WriteResult | None:
        """Begin to write a page, or return why it is not written. The directory is held, and all
        changes of peer processes are known. Raises HeldEnough, OSError."""
        wanted = writing.wanted
        with self._index.lock:
            known = self.known(writing.candidate.page, wanted.name.held)
        if known is not None:
            return known
        writing.described = self._files.document_bytes(wanted.namespace, writing.document)
        refusal = self._evictor.make(writing)
        if refusal is None:
            # First of all: of a writer that is killed others must know what to look for.
            self._evictor.reserve(writing, wanted)
            writing.opened = self._files.stage(
                writing.temporary, wanted.nbytes - FILE_SLACK_BYTES, writing.document
            )
        return refusal

    def _give_back(self, writing: Writing) -> None:
        """Delete the written part of a page that is not published, and release its reservation;
        raises nothing."""
        writing.reserved = 0
        try:
            if writing.opened.fd < 0 or abandon(writing.temporary, self._files.fs):
                with contextlib.suppress(OSError), self._sharing.changing():
                    self._sharing.tidy([writing.shard])
                    self._sharing.flights.end(writing.file)
                    self._sharing.tell(Cancelled(writing.file))
                    return
            # The next process that holds the directory finds out about the page.
            if flight := self._sharing.flights.get(writing.file):
                self._sharing.flights.count(writing.file, flight._replace(own=False))
        finally:
            writing.opened.close()

    def _publish(self, writing: Writing) -> WriteResult:
        page = writing.candidate.page
        try:
            nbytes = self._files.fill(writing.temporary, writing.pieces)
            with self._sharing.changing():
                with self._index.lock:
                    # Another process may have published as much of it meanwhile.
                    is_there = self.known(page, writing.wanted.name.held) == "present"
                if is_there:
                    self._give_back(writing)
                    return "present"
                self._fs.publish(writing.temporary, writing.path)
                with contextlib.suppress(OSError):
                    self._fs.set_times(writing.path, writing.candidate.stamp_ns)
                self.take(writing, nbytes)
                writing.reserved = 0
            self._fs.sync_directory(writing.shard, self._files.durability)
            if self._sharing.untold and not self._sharing.follows:
                # The directory was made anew meanwhile. If this process ended now, no other would
                # find the page, though `flush` has reported it durable.
                with contextlib.suppress(OSError):
                    self._load()
        except BaseException:
            if writing.reserved:
                self._give_back(writing)
            else:
                self._deleter.discard([page])
            raise
        with self._index.lock:
            self._index.health.end_write()
        return "written"

    def take(self, writing: Writing, nbytes: int) -> None:
        page, time_ns = writing.candidate.page, writing.candidate.stamp_ns
        stored = writing.wanted._replace(nbytes=nbytes)
        again = self._evictor.once_written.find(page) is not None
        with self._index.lock:
            replaced = self._index.pop(page)
            self._sharing.flights.end(writing.file)
            self._index.put(stored, time_ns, used=True).recorded_ns = time_ns
            self.written += nbytes
            self.rewritten += nbytes if again or replaced is not None else 0
            self._index.events.note_file("stored", stored, parent=writing.parent)
        self._sharing.tell(Added(writing.file, stored, time_ns, 0))
        if replaced is not None and replaced.stored.name != stored.name:
            self._deleter.delete_held([self._index.doom(replaced.stored, "disk")])
