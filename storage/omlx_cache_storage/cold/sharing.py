"""The state that processes of one directory share: each follows the others' changes, and tells its
own."""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import filterfalse
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import FoundFile, is_leftover, walk_shard
from omlx_cache_storage.cold.disk import (
    WRITER_TOKEN,
    Descriptor,
    FileSystem,
    remove_temporaries,
)
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.index import Counted, Index
from omlx_cache_storage.cold.ledger import WAIT_SECONDS, Ledger, LedgerBusy
from omlx_cache_storage.cold.ledger_records import (
    Added,
    Cancelled,
    Change,
    Demoted,
    Emptied,
    Rebudgeted,
    Removed,
    Removing,
    Repinned,
    Reserved,
)
from omlx_cache_storage.cold.root import check_sharing
from omlx_cache_storage.format.names import (
    ENTRY_BYTES,
    LEDGER_FILE,
    StoredPage,
    page_path,
)
from omlx_cache_storage.keys import BlockKey

_log = logging.getLogger(__name__)

FOLLOW_SECONDS = 0.05
"""How long a lookup waits for another thread that takes in changes."""
ABANDONED_SECONDS = 1.0
"""A page that is in flight for longer may have lost its writer, and is looked at."""


class Flight(NamedTuple):
    """A page that is being written under a temporary name, into a shard's directory.

    It takes `cost` of the budget. `page` is None where only the file was seen. `own`: this object
    began it, and ends it; `since`: when another's was last found to be in flight, by the monotonic
    clock, 0 when it was not looked at.
    """

    temporary: str
    directory: str
    namespace: BlockKey
    cost: int
    page: StoredPage | None = None
    own: bool = False
    since: float = 0.0


class Sharing:
    """Follows a directory's ledger into an index, and writes into it what this process does.

    The directory itself is the truth. A thread that changes it holds `changing`: its knowledge is
    exact then. `_following` is held while changes are taken in. It guards `generation`, how often
    that was so, `deletions`, how many pages were deleted on request, and `is_lost`: changes were
    missed, and the directory must be read again. `flights`: files in flight, by temporary name.
    Three fields belong to the thread that has the directory's lock: `rebudgeted` and `repinned` (a
    file was changed), and `untold` (changes that peer processes do not know yet). `read_only`:
    nothing could be written when the directory was read. `counts`: False for a service, which does
    not count as a user of the directory.
    """

    def __init__(self, directory: Path, fs: FileSystem, index: Index, files: PageFiles) -> None:
        self.directory = directory
        self._fs = fs
        self._index = index
        self._files = files
        self.ledger = Ledger(directory, fs)
        self._following = threading.RLock()
        self.flights: Counted[str, Flight] = Counted()
        self.rebudgeted = False
        self.repinned = False
        self.is_lost = False
        self.read_only = False
        self.counts = True
        self.generation = self.deletions = 0
        self.untold: list[Change] = []
        self._going: set[StoredPage] = set()
        self._attached = Descriptor(-1)
        self._warned = ""

    @property
    def follows(self) -> bool:
        """True while the directory is the one that was read last, and the ledger tells all changes
        since then. False also where the disk does not answer."""
        with contextlib.suppress(OSError):
            if not self.is_lost and self._files.is_ours():
                if not self.read_only:
                    return self.ledger.is_current
                # No process changes anything, or the ledger has the changes of another mount.
                return not self.ledger.is_gone and not self._fs.is_writable(self.directory)
        return False

    def enter(self, ledger_bytes: int) -> None:
        """Have the directory's ledger, and follow it from here on; raises OSError. Nothing is taken
        in until `beginning`."""
        self.is_lost = True
        self.read_only = not self._fs.is_writable(self.directory)
        if self.read_only:
            self.ledger.watch()
        else:
            # No peer process can put one here: this file is from when the directory was another
            # user's.
            self._fs.remove_foreign(os.path.join(self.directory, LEDGER_FILE))
            warning = check_sharing(self.directory, self._fs)
            if warning and warning != self._warned:
                _log.warning("%s", warning)
            self._warned = warning
            self.ledger.open(ledger_bytes)
        self._attach()

    @contextlib.contextmanager
    def beginning(self, under_way: Iterable[FoundFile], slack_bytes: int) -> Iterator[None]:
        """Begin with the pages that were read since `enter`; the index has them when the block
        ends."""
        with self._following:
            yield
            self._going.clear()
            # Of what those hear who have read the directory anew only a page that is there is true.
            self.untold = [
                change
                for change in self.untold
                if isinstance(change, Added) and self._is_there(change.page)
            ]
            self.flights.end(*(flight.temporary for flight in self.others()))
            for file in under_way:
                cost = file.nbytes + slack_bytes + ENTRY_BYTES
                self._see(Flight(file.file, file.directory, file.namespace, cost))
            self.is_lost = False

    def is_alone(self) -> bool:
        """True when no other process, and no other tier of this one, uses the directory. It counts
        as used by this one from now on, if this one `counts`. The directory is held."""
        alone = self._fs.lock(self._attached.fd)
        if self.counts:
            self._fs.lock(self._attached.fd, shared=True)
        else:
            # The next process that asks, which none does meanwhile, finds no lock.
            self._attach()
        return alone

    def _attach(self) -> None:
        self._attached.close()
        self._attached = Descriptor(self._fs.open_directory(self.directory), locked=True)

    @property
    def fell_behind(self) -> bool:
        """True when changes of a directory that is there were missed: it is to be read again."""
        return self.is_lost and self.ledger.is_open

    def close(self) -> None:
        self._attached.close()
        self.ledger.close()

    def refresh(self) -> bool:
        """Take in the changes of peer processes; False when there are none. Reads a few bytes when
        nothing was changed; any thread may call, and nothing raises."""
        try:
            # First: what another thread has read may not be there yet.
            if (
                self.is_lost
                or not self.ledger.is_open
                or not self._following.acquire(timeout=FOLLOW_SECONDS)
            ):
                return False
            try:
                return self._follow()
            finally:
                self._following.release()
        except OSError:
            return False

    def _follow(self) -> bool:
        with self._following:
            changes = self.ledger.news()
            if changes is None:
                self.is_lost = True
                return False
            for change in changes:
                self._apply(change)
            self.generation += bool(changes)
            return bool(changes)

    def _apply(self, change: Change) -> None:
        match change:
            case Reserved(temporary, page, described):
                directory = self._files.directory_of(page)
                self._files.expect(directory, described)
                self._see(
                    Flight(
                        temporary,
                        directory,
                        page.namespace,
                        page.cost,
                        page,
                        since=time.monotonic(),
                    )
                )
            case Added(temporary, page, stamp_ns, described):
                self._files.expect(self._files.directory_of(page), described)
                self._index.take_in(page, stamp_ns)
                self.flights.end(temporary)
            case Cancelled(temporary):
                self.flights.end(temporary)
            case Removed(page, why):
                self._going.discard(page)
                self._index.leave(page, why)
                self.deletions += why == "removed"
            case Emptied(namespace, shard):
                self._files.left(namespace, shard)
            case Demoted(stamp_ns, pages):
                self._index.place(pages, stamp_ns)
            case Rebudgeted():
                self.rebudgeted = True
            case Repinned():
                self.repinned = True
            case Removing(pages):
                self._going.update(pages)

    def _see(self, flight: Flight) -> None:
        if flight.temporary not in self.flights:
            self.flights.count(flight.temporary, flight)

    @contextlib.contextmanager
    def changing(self, seconds: float = WAIT_SECONDS) -> Iterator[None]:
        """Keep peer processes and threads from changing the directory, and know its exact contents;
        a thread may enter any number of times.

        Waits for `seconds` at most. Raises OSError: LedgerBusy for a directory that is held for
        longer, and when more was changed than could be followed.
        """
        if self.read_only:
            raise self.refusal()
        with self.ledger.held(seconds):
            self._follow()
            if self.is_lost:
                raise LedgerBusy(errno.EAGAIN, "the directory changed faster than it was followed")
            self.tell()
            if self._going:
                self._end_removals()
            yield

    def refusal(self) -> OSError:
        code = errno.EROFS if self._fs.is_read_only(self.directory) else errno.EACCES
        return OSError(code, os.strerror(code), str(self.directory))

    def tell(self, *changes: Change) -> None:
        """Tell peer processes what changed; the directory is held. Changes that the disk rejects
        are told later, and so are changes in a ledger that was removed meanwhile. Until then peer
        processes count more bytes than there are, and miss pages that exist."""
        self.untold += changes
        if self.untold:
            with contextlib.suppress(OSError):
                self.ledger.append(self.untold)
                if self.ledger.is_current:
                    self.untold = []

    def _is_there(self, page: StoredPage) -> bool:
        return self._fs.own_file(page_path(self.directory, page.namespace, page.name)) is not None

    def tidy(self, shards: Iterable[str]) -> None:
        self.tell(*self._files.tidy(shards))

    def others(self) -> Iterator[Flight]:
        return filterfalse(attrgetter("own"), list(self.flights.values()))

    def is_elsewhere(self, page: StoredPage) -> bool:
        """True while another writer, which still runs, writes as much of a page. The directory is
        held."""
        for flight in self.others():
            if (
                flight.page is not None
                and flight.page.name.id == page.name.id
                and flight.page.held >= page.held
                and self._goes_on(flight)
            ):
                return True
        return False

    def recover(self) -> None:
        """Find out about other writers' pages that take long, published or not. The directory is
        held."""
        before = time.monotonic() - ABANDONED_SECONDS
        for flight in self.others():
            if flight.since <= before:
                self._goes_on(flight)

    def _goes_on(self, flight: Flight) -> bool:
        """Return whether a flight goes on counting, and end an abandoned one. The directory is
        held."""
        # One that stays is looked at again after as long.
        self.flights.count(flight.temporary, flight._replace(since=time.monotonic()))
        if not self._is_under_way(flight):
            self._end_abandoned(flight)
        return flight.temporary in self.flights

    def _end_removals(self) -> None:
        with self._following:
            going, self._going = self._going, set()
        for page in going:
            if not self._is_there(page):
                self._index.leave(page, "removed")
                self.tell(Removed(page, "removed"))
                self.tidy([self._files.directory_of(page)])

    def _is_under_way(self, flight: Flight) -> bool:
        path = os.path.join(flight.directory, flight.temporary)
        if self._fs.is_being_written(path):
            return True
        # A writer that announces nothing, as in earlier versions, may lock nothing. This process is
        # none: a page that it could not delete was found when the directory was read anew.
        info = None if flight.page or WRITER_TOKEN in flight.temporary else self._fs.own_file(path)
        return info is not None and not is_leftover(flight.temporary, info.st_mtime_ns)

    def _end_abandoned(self, flight: Flight) -> None:
        """Delete a writer's leftovers, and take in the pages that it published and did not tell.
        Leftovers that the disk does not delete stay counted."""
        writer, is_busy = flight.temporary.rpartition("-")[0] + "-", self._fs.is_being_written
        for directory in (flight.directory, os.path.dirname(flight.directory)):
            remove_temporaries(
                directory,
                self._fs,
                lambda file: file.name.startswith(writer) and not is_busy(file.path),
            )
        if self._fs.exists(os.path.join(flight.directory, flight.temporary)):
            return
        changes: list[Change] = []
        for file in list(walk_shard(flight.namespace, flight.directory, self._fs)):
            if file.name is not None and not self._index.knows(file.name):
                page = StoredPage(file.namespace, file.name, file.nbytes)
                self._index.take_in(page, file.mtime_ns)
                changes.append(Added("", page, file.mtime_ns, 0))
        self.flights.end(flight.temporary)
        self.tell(*changes, Cancelled(flight.temporary))
        self.tidy([flight.directory])


class DirectoryPart:
    """A part of a cold tier: it works on the tier's index and files, and on what peer processes
    share."""

    def __init__(self, index: Index, files: PageFiles, sharing: Sharing) -> None:
        self._index = index
        self._files = files
        self._fs = files.fs
        self._sharing = sharing
