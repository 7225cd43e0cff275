"""Eviction from the disk: the pages that are evicted for a new one, and the room reserved for
it."""

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from omlx_cache_storage.cold.deletion import Deleter
from omlx_cache_storage.cold.disk import Descriptor
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.index import Candidate, Index, PendingDeletion, Victims
from omlx_cache_storage.cold.ledger import HOLD_FILES
from omlx_cache_storage.cold.ledger_records import Cancelled, Change, Demoted, Removed, Reserved
from omlx_cache_storage.cold.sharing import DirectoryPart, Flight, Sharing
from omlx_cache_storage.documents import format_size
from omlx_cache_storage.events import Departures
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.format.names import ENTRY_BYTES, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Buffer, PageId, WriteResult

_log = logging.getLogger(__name__)

FILE_SLACK_BYTES = 16 * 1024
"""More than a file takes beside header and payload: its last block, and its name."""
DIRECTORY_SLACK_BYTES = 12 * 1024
"""More than small files take while they are replaced."""
_FEW_FILES = 32
"""The disk lacks no files any more when so many may be made: eviction gives back one at a time."""
AHEAD_NS = 60 * 1_000_000_000
"""Times of files that are further ahead than this are no uses of other processes."""
LOOKED_AHEAD = 1024
"""Pages whose use by others is asked for at a time, at most."""


@dataclass(slots=True)
class Writing:
    """A page in flight to the disk. Belongs to the thread that writes.

    `wanted` is as large as its file may become, in the directory `shard`. Bytes are `reserved` for
    the page under the name of its temporary `file`, `described` of them for its namespace's
    document. The disk itself is `short` of so many bytes (None: not asked yet).
    """

    candidate: Candidate
    wanted: StoredPage
    parent: BlockKey
    document: Mapping[str, object]
    pieces: list[Buffer]
    shard: str
    temporary: str
    file: str
    path: str
    described: int = 0
    reserved: int = 0
    short: int | None = None
    opened: Descriptor = field(default_factory=partial(Descriptor, -1))


class HeldEnough(Exception):
    """A part of the room is reserved; peer processes get the directory before the other part."""


class Evictor(DirectoryPart):
    """Decides which pages a directory evicts. Physical bytes of all processes, temporary files and
    directories included, stay under the budget, and the disk keeps `min_free` bytes free.

    The index's lock guards `own_limit` (where this process stops writing), `impatience` (how many
    callers want no page spared for its age) and the counts. The thread that writes owns `is_short`
    (the disk had too little free when it was last asked) and `lacks_files` (that was files, not
    bytes). While the process `waits`, since it may not stay, no budget of its own evicts or is
    written; any thread may change that, and the next `settle` goes by it.
    """

    def __init__(
        self, index: Index, files: PageFiles, sharing: Sharing, deleter: Deleter, min_free: int
    ) -> None:
        super().__init__(index, files, sharing)
        self._deleter = deleter
        self.min_free = min_free
        self.own_limit: int | None = None
        self.impatience = 0
        self.waits = self.is_short = self.lacks_files = False
        self.peak = 0
        self.evicted = 0
        self.refused = 0
        self.once_written = Departures()

    def catch_up(self, pages: Sequence[PageId], asked: set[PageId]) -> bool:
        """Read from the files of pages that are about to be evicted when any process used them;
        True when that is news. The directory is held. Each is read once and becomes one of the
        `asked`: a future time would always be news."""
        news = False
        new = [page for page in pages if page not in asked]
        asked.update(new)
        for page in new:
            with self._index.lock:
                file = self._index.contents.get(page)
                if file is None or page in self._index.unrecorded:
                    continue
                stamp_ns = file.stamp_ns
            info = self._fs.own_file(self._index.path(file.stored))
            if info is None:
                news = True
                self._index.leave(file.stored, "removed")
                self._sharing.tell(Removed(file.stored, "removed"))
            elif info.st_mtime_ns > stamp_ns and info.st_mtime_ns != file.recorded_ns:
                with self._index.lock:
                    used_ns = min(info.st_mtime_ns, self._index.clock.now())
                    if used_ns > stamp_ns and self._index.contents.usable(page) is not None:
                        self._index.contents.touch([page], used_ns, used_ns)
                        news = True
                        if used_ns < info.st_mtime_ns:
                            # Once: its file would say so until that time has come.
                            self._index.unrecorded.add(page)
        return news

    def record_recency(self) -> None:
        """Write to the files when their pages were used, for `catch_up` of peer processes and for
        the next start. Raises nothing."""
        now = self._index.clock.now()
        with self._index.lock:
            pages, self._index.unrecorded = self._index.unrecorded, set()
            files = list(filter(None, map(self._index.contents.get, pages)))
            for file in files:
                if file.stamp_ns > now and not file.pinned_ns:
                    # Used later than now: others learn again and again that it is in use.
                    self._index.unrecorded.add(file.id)
        demoted: dict[int, list[PageId]] = {}
        for file in files:
            path, time_ns = self._index.path(file.stored), min(file.stamp_ns, now)
            with contextlib.suppress(OSError):
                info = self._fs.own_file(path)
                if time_ns <= SUPERSEDED_NS:
                    demoted.setdefault(time_ns, []).append(file.id)
                elif info is None or (
                    # A peer process has used it later. A time of this process's own is taken back,
                    # and so is a future one: a clock was ahead.
                    time_ns <= info.st_mtime_ns <= now + AHEAD_NS
                    and info.st_mtime_ns != file.recorded_ns
                ):
                    continue
                self._fs.set_times(path, time_ns)
                file.recorded_ns = time_ns
        if demoted:
            with contextlib.suppress(OSError), self._sharing.changing():
                self._sharing.tell(*(Demoted(at, tuple(pages)) for at, pages in demoted.items()))

    def known_bytes(self) -> int:
        with self._index.lock:
            return self.used_bytes()

    def used_bytes(self) -> int:
        held = self._index.contents.nbytes + self._sharing.flights.nbytes
        return held + self._index.doomed.nbytes + self._files.counted.nbytes

    def places_of(self, writing: Writing) -> int:
        return sum(self._files.places(writing.shard, writing.described).values())

    def reserve(self, writing: Writing, page: StoredPage) -> None:
        """Count a page in place of its former reservation; the directory is held."""
        again: tuple[Change, ...] = (Cancelled(writing.file),) if writing.reserved else ()
        self._files.expect(writing.shard, writing.described)
        flight = Flight(writing.file, writing.shard, page.namespace, page.cost, page, own=True)
        with self._index.lock:
            self._sharing.flights.count(writing.file, flight)
            writing.reserved = flight.cost
            self.peak = max(self.peak, self.used_bytes())
        # Raises OSError: a page of which peer processes know nothing must not be written.
        self._sharing.ledger.append([*again, Reserved(writing.file, page, writing.described)])

    def give_way(self, nbytes: int, candidate: Candidate) -> Victims:
        """Evict about `nbytes`, at least one page if one may be evicted, since the disk had no room
        for the candidate."""
        with self._index.lock:
            most = min(nbytes, self._index.contents.nbytes)
            now, until = self._index.clock.now(), self._until(candidate)
            victims = self._index.contents.victims(most, candidate, now, until)
            evicted = self.evict(victims.pages)
            self.refused += victims.outranked and not victims.pages
        self._deleter.delete(evicted)
        return victims

    def make(self, writing: Writing) -> WriteResult | None:
        """Evict pages for a new one and the directories that it needs; return why not otherwise.
        The directory is held, and the freed bytes are the caller's until it is released. Raises
        HeldEnough when another call must go on."""
        candidate = writing.candidate
        nbytes = writing.wanted.cost + self.places_of(writing) - writing.reserved
        # That it is enough is known from the second call on.
        most = sys.maxsize if writing.short is None else HOLD_FILES
        if writing.short is None:
            # Once for a page: a disk that gives nothing back is not emptied for it.
            writing.short = max(self.lacking(nbytes))
        lacks = writing.short
        with self._index.lock:
            over = self.lacks(nbytes)
            # Others keep more here: theirs is not this process's to delete.
            if self.own_limit is not None and over + self._index.limit_bytes > self.own_limit:
                self.refused += 1
                return "refused"
            if max(over, lacks) <= 0:
                return None
        victims = self.victims(lambda: max(self.lacks(nbytes), lacks), candidate, most=most)
        if victims.outranked:
            with self._index.lock:
                # Peer processes may not need all that they have reserved.
                lasting = self.lacks(nbytes) >= lacks and not any(self._sharing.others())
                self._refuse(candidate, victims, lasting=lasting)
            return "refused"
        if victims.enough:
            self._expel_for(writing, victims)
        with self._index.lock:
            # An evicted page whose file could not be deleted still takes room.
            if not victims.enough or self.lacks(nbytes) > 0:
                self._index.health.write_error = "full"
                return "full"
        return None

    def victims(
        self,
        lacks: Callable[[], int],
        candidate: Candidate | None,
        most: int = sys.maxsize,
    ) -> Victims:
        """Choose pages to evict for the lacking bytes; `most` as in `Contents.victims`. The files
        of the first `HOLD_FILES` victims, at least, were checked for a later use."""
        ahead, asked = 1, set[PageId]()
        while True:
            with self._index.lock:
                now = self._index.clock.now()
                until = sys.maxsize if candidate is None else self._until(candidate)
                victims = self._index.contents.victims(lacks(), candidate, now, until, most)
            if not self.catch_up(victims.pages[:HOLD_FILES], asked):
                return victims
            # Others used what comes next as well: a chain is used as a whole.
            ahead = min(2 * ahead, LOOKED_AHEAD)
            self.catch_up(self.first(ahead), asked)

    def expel(self, pages: list[PageId]) -> list[PendingDeletion]:
        """Evict pages and delete their files, as many as one hold of the directory is for; return
        these. The directory is held."""
        expelled: list[PendingDeletion] = []
        while pages and (count := self._sharing.ledger.allow(len(pages))):
            with self._index.lock:
                evicted = self.evict(pages[:count])
            self._deleter.delete_held(evicted)
            expelled += evicted
            pages = pages[count:]
        return expelled

    def _expel_for(self, writing: Writing, victims: Victims) -> None:
        """Evict for a page as much as one hold of the directory is for; raises HeldEnough, with the
        room so far reserved, when that is a part of it."""
        undeletable = self._index.doomed.nbytes
        expelled = self.expel(victims.pages)
        writing.short = (writing.short or 0) - sum(file.cost for file in expelled)
        is_part = len(expelled) < len(victims.pages) or len(expelled) == HOLD_FILES
        if is_part and self._index.doomed.nbytes <= undeletable:
            with self._index.lock:
                over = self.lacks(0)
            wanted, free = writing.wanted, writing.reserved - over - self.places_of(writing)
            if free > ENTRY_BYTES:
                nbytes = min(free - ENTRY_BYTES, wanted.nbytes)
                self.reserve(writing, wanted._replace(nbytes=nbytes))
            raise HeldEnough

    def lacks(self, nbytes: int) -> int:
        return self.used_bytes() + nbytes + DIRECTORY_SLACK_BYTES - self._index.limit_bytes

    def _refuse(self, candidate: Candidate, victims: Victims, *, lasting: bool) -> None:
        """Count a page that others outrank, and remember its rank: pages of lower rank are rejected
        without a search for victims."""
        self.refused += 1
        # Free space comes and goes without this tier; its own budget does not.
        self._index.refused_rank = candidate.rank if lasting else None
        # A page that was too young to be evicted becomes old enough.
        patience_ns, young_ns = self._index.contents.policy.patience_ns, victims.young_ns
        self._index.refused_until_ns = young_ns + patience_ns if young_ns else sys.maxsize
        self._index.contents.policy.wanted([candidate.page], candidate.stamp_ns)
        self._index.contents.policy.refused([candidate.page], candidate.stamp_ns)

    def first(self, count: int) -> list[PageId]:
        with self._index.lock:
            return [file.id for file in islice(self._index.contents.in_order(), count)]

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Let new pages evict recently used ones, for as long as the block lasts."""
        with self._index.lock:
            self.impatience += 1
            self._index.refused_rank = None
        try:
            yield
        finally:
            with self._index.lock:
                self.impatience -= 1

    def _until(self, candidate: Candidate) -> int:
        latest_ns = max(self._index.clock.now(), candidate.stamp_ns)
        patience_ns = self._index.contents.policy.patience_ns
        return sys.maxsize if self.impatience else latest_ns - patience_ns

    def lacking(self, nbytes: int) -> tuple[int, int]:
        """Return how many bytes the disk lacks to keep its free space beside `nbytes` more, and 1
        if it lacks files. Raises OSError for a disk mounted read-only, where nothing can be
        evicted."""
        directory = self._index.directory
        try:
            free = self._fs.free_bytes(directory)
            spare = self._fs.spare_files(directory) if self.min_free else None
            was_short = self.is_short
            least, fewest = (
                (self.min_free * 5 // 4, _FEW_FILES) if was_short else (self.min_free, 1)
            )
            self.lacks_files = spare is not None and spare < fewest
            self.is_short = self.lacks_files or free < least
            if self.is_short != was_short:
                self._log_room(free, spare)
            read_only = self._fs.is_read_only(directory)
        except OSError:
            return 0, 0
        if read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(directory))
        return self.min_free + nbytes - free, int(spare is not None and spare < 1)

    def _log_room(self, free: int, spare: int | None) -> None:
        directory = self._index.directory
        if not self.is_short:
            _log.warning(
                "the disk of %s has room again: %s%s",
                *(directory, format_size(free)),
                "" if spare is None else f", and {spare:,} files (inodes)",
            )
            return
        others = max(0, self._fs.taken_bytes(directory) - self.known_bytes())
        what = (
            f"{format_size(free)} free, less than min_free_bytes ({format_size(self.min_free)}), "
            f"and others use {format_size(others)} of it"
        )
        _log.warning(
            "the disk of %s has %s: pages are evicted until there is enough; see "
            "`omlx-cache doctor`",
            *(directory, "hardly a file (inode) left" if self.lacks_files else what),
        )

    def evict(self, pages: Sequence[PageId]) -> list[PendingDeletion]:
        evicted = self._index.drop(pages, "disk")
        self.evicted += len(evicted)
        self.once_written.note(pages, "disk")
        return evicted
