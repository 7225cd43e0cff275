"""The part of a cold tier that other processes share: what they change is seen, and told."""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from omlx_cache_storage.cold.catalog import walk_shard
from omlx_cache_storage.cold.changes import (
    Added,
    Cancelled,
    Change,
    Demoted,
    Emptied,
    Rebudgeted,
    Removed,
    Reserved,
    decode,
    encode,
)
from omlx_cache_storage.cold.deletion import WAIT_SECONDS
from omlx_cache_storage.cold.disk import Descriptor, Durability, FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.held import HeldPages
from omlx_cache_storage.cold.in_flight import Flight, InFlight
from omlx_cache_storage.cold.ledger import Ledger, LedgerBusy
from omlx_cache_storage.cold.mounts import check_sharing
from omlx_cache_storage.cold.records import PendingDeletion, StoredPage
from omlx_cache_storage.cold.temporary import remove_temporaries
from omlx_cache_storage.departures import HOWS, Departures, How
from omlx_cache_storage.eviction.learned import Learned
from omlx_cache_storage.eviction.policy import EvictionPolicy
from omlx_cache_storage.format.names import shard_of
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.recency import SUPERSEDED_NS, Clock

_log = logging.getLogger(__name__)

APPLIED = 256
"""Changes of others that are taken in at a time: look-ups wait no longer than for so many."""
FOLLOW_SECONDS = 0.05
"""For so long a look-up waits for another thread that takes in changes."""
ABANDONED_SECONDS = 1.0
"""A page that is under way for longer may have lost its writer, and is looked at."""


class SharedPages(HeldPages):
    """Pages of a directory that any number of processes change.

    Each has an index of its own, which follows the directory's ledger; the directory itself is the
    truth. `_changing` is held by whoever changes the directory: what is known then is exact.

    `_following` is held while changes are taken in, and taken before `_lock`; it guards
    `_generation`, how often that was so. `_lock` guards `_flights`, `_rebudgeted` (the file with
    the budget was changed) and `_lost` (changes were missed: the directory must be read again) as
    well.
    """

    def __init__(
        self,
        directory: Path,
        fs: FileSystem,
        departures: Departures,
        policy: Callable[[Learned | None], EvictionPolicy],
        clock: Clock,
        durability: Durability,
    ) -> None:
        super().__init__(
            directory, fs, lambda shards: self._files.tidy(shards), departures, policy, clock
        )
        self._files = PageFiles(
            directory, fs, durability, self._deleter.delete_temporary, self._emptied
        )
        self._ledger = Ledger(directory, fs)
        self._following = threading.RLock()
        self._flights = InFlight()
        self._rebudgeted = False
        self._lost = False
        self._generation = 0
        self._attached = Descriptor(-1)
        self._warned = ""

    # Coming and going.

    def _enter_directory(self, ledger_bytes: int) -> None:
        """Have the directory's ledger, and follow it from here on; raises OSError."""
        warning = check_sharing(self.directory, self._fs)
        if warning and warning != self._warned:
            _log.warning("%s", warning)
        self._warned = warning
        self._ledger.open(ledger_bytes)
        self._attached.close()
        self._attached = Descriptor(self._fs.open_directory(self.directory))

    def _alone(self) -> bool:
        """True when no other process, and no other tier of this one, uses the directory; it counts
        as used by this one from now on. The directory is held."""
        alone = self._fs.try_lock(self._attached.fd)
        self._fs.try_lock(self._attached.fd, shared=True)
        return alone

    def close(self) -> None:
        """Leave the directory to others: what they do is not seen any more. Pages stay readable."""
        self._attached.close()
        self._ledger.close()

    # What others do.

    @property
    def generation(self) -> int:
        """How often changes of other processes were taken in."""
        return self._generation

    def refresh(self) -> bool:
        """Take in what other processes changed; False when that is nothing. Reads a few bytes when
        nothing was changed; any thread may call, and nothing raises."""
        try:
            if not self._ledger.is_open or self._lost:
                return False
            # First: what another thread has read may not be there yet.
            if not self._following.acquire(timeout=FOLLOW_SECONDS):
                return False
            try:
                return self._ledger.changed() and self._follow()
            finally:
                self._following.release()
        except OSError:
            return False

    def _follow(self) -> bool:
        """Take in changes in order; False when there are none, or when some are lost."""
        with self._following:
            records = self._ledger.news()
            if records is None:
                with self._lock:
                    self._lost = True
                return False
            changes = decode(records)
            for at in range(0, len(changes), APPLIED):
                with self._lock:
                    left = [self._apply(change) for change in changes[at : at + APPLIED]]
                for how in HOWS:
                    self._departures.note([one[1] for one in left if one and one[0] == how], how)
            self._generation += bool(changes)
            return bool(changes)

    def _changing(self, seconds: float = WAIT_SECONDS) -> AbstractContextManager[None]:
        """Keep everybody else from changing the directory, and know exactly what is in it; within
        a thread any number of times over.

        Waits for `seconds` at most. Raises OSError: LedgerBusy for a directory that is held for
        longer, and when more was changed than could be followed.
        """
        return self._held(seconds)

    @contextlib.contextmanager
    def _held(self, seconds: float) -> Iterator[None]:
        with self._ledger.held(seconds):
            self._follow()
            if self._lost:
                raise LedgerBusy(errno.EAGAIN, "the directory changed faster than it was followed")
            yield

    def _tell(self, *changes: Change) -> None:
        """Tell the others what was changed; the directory is held."""
        if changes:
            self._ledger.append([encode(change) for change in changes])

    def _apply(self, change: Change) -> tuple[How, PageId] | None:
        """Take in one change of another process; return how a page left, if one did."""
        match change:
            case Reserved(temporary, page, described):
                self._expect(page, described)
                directory = os.path.dirname(self._path(page))
                self._flights.begin(temporary, directory, page.namespace, page.nbytes, page)
            case Added(temporary, page, stamp_ns, described):
                self._expect(page, described)
                self._flights.end(temporary)
                self._take_in(page, stamp_ns)
            case Cancelled(temporary):
                self._flights.end(temporary)
            case Removed(page, why):
                return self._leave(page, why)
            case Emptied(namespace, shard):
                self._files.left(namespace, shard)
            case Demoted(stamp_ns, pages):
                self._contents.place(pages, stamp_ns)
            case Rebudgeted():
                self._rebudgeted = True
        return None

    def _expect(self, page: StoredPage, described: int) -> None:
        self._files.expect(page.namespace, shard_of(page.name.id.key), described)

    def _take_in(self, page: StoredPage, stamp_ns: int) -> None:
        """Index a page that another process wrote."""
        name = page.name.id
        stamp_ns = min(stamp_ns, self._clock.now())
        if self._contents.stored(name) is not None:
            stamp_ns = max(stamp_ns, self._contents.stamp(name))
            self._pop(name)
        self._leaving.discard(name)
        self._contents.add(page, stamp_ns, used=False)

    def _leave(self, page: StoredPage, why: str) -> tuple[How, PageId] | None:
        """Forget a page whose file another process deleted."""
        name = page.name.id
        self._deleter.left(self._path(page))
        known = self._contents.stored(name)
        if known is None or known.name != page.name:
            return None
        self._left.append((name, self._contents.stamp(name)))
        self._pop(name)
        self._leaving.discard(name)
        return next(((how, name) for how in HOWS if how == why), None)

    # What this one does.

    def _emptied(self, namespace: BlockKey, shard: str) -> None:
        self._tell(Emptied(namespace, shard))

    def _gone(self, files: list[PendingDeletion]) -> None:
        self._tell(*(Removed(file.page, file.why) for file in files if file.page is not None))

    # Recency, which is everybody's: the modification times of the files.

    def _record_recency(self) -> None:
        """Give files the times at which their pages were used; raises nothing."""
        with self._lock:
            pages, self._unrecorded = self._unrecorded, set()
            used = [
                (stored, self._contents.stamp(page))
                for page in pages
                if (stored := self._contents.stored(page)) is not None
            ]
        demoted: dict[int, list[PageId]] = {}
        for stored, stamp_ns in used:
            path = self._path(stored)
            with contextlib.suppress(OSError):
                if stamp_ns <= SUPERSEDED_NS:
                    demoted.setdefault(stamp_ns, []).append(stored.name.id)
                elif (info := self._fs.own_file(path)) is None or info.st_mtime_ns >= stamp_ns:
                    # Somebody else has used it later.
                    continue
                self._fs.set_times(path, stamp_ns)
        if demoted:
            with contextlib.suppress(OSError), self._ledger.held():
                self._tell(*(Demoted(at, tuple(pages)) for at, pages in demoted.items()))

    def _catch_up(self, pages: Iterable[PageId]) -> bool:
        """Ask the files of pages that are about to leave when they were used, by whomever; True
        when that is news. The directory is held."""
        news = False
        for page in pages:
            with self._lock:
                stored = self._contents.stored(page)
                if stored is None or page in self._unrecorded:
                    continue
                stamp_ns = self._contents.stamp(page)
            info = self._fs.own_file(self._path(stored))
            if info is None:
                news = True
                with self._lock:
                    self._leave(stored, "removed")
                self._tell(Removed(stored, "removed"))
            elif info.st_mtime_ns > stamp_ns:
                with self._lock:
                    used_ns = min(info.st_mtime_ns, self._clock.now())
                    if used_ns > stamp_ns and page in self._contents:
                        self._contents.touch([page], used_ns, used=False)
                        news = True
        return news

    # What became of those who are gone.

    def _recover(self, flights: list[Flight] | None = None) -> None:
        """Find out about pages of other writers that nobody writes any more, published or not: of
        `flights`, or of all that take long. The directory is held."""
        if flights is None:
            before = time.monotonic() - ABANDONED_SECONDS
            with self._lock:
                flights = [flight for flight in self._flights.others() if flight.since <= before]
        for flight in flights:
            if self._fs.is_being_written(os.path.join(flight.directory, flight.temporary)):
                with self._lock:
                    self._flights.looked_at(flight.temporary)
            else:
                self._end_abandoned(flight)

    def _end_abandoned(self, flight: Flight) -> None:
        """Delete what a writer left, and take in what it published and did not tell."""
        for directory in (flight.directory, os.path.dirname(flight.directory)):
            remove_temporaries(directory, flight.temporary, self._fs)
        changes: list[Change] = [Cancelled(flight.temporary)]
        found = list(walk_shard(flight.namespace, flight.directory, self._fs))
        with self._lock:
            self._flights.end(flight.temporary)
            for file in found:
                known = None if file.name is None else self._contents.stored(file.name.id)
                if file.name is None or (known is not None and known.name == file.name):
                    continue
                if file.name.id in self._leaving or self._deleter.is_pending(file.path):
                    continue
                page = StoredPage(file.namespace, file.name, file.nbytes)
                self._take_in(page, file.mtime_ns)
                changes.append(Added("", page, file.mtime_ns, 0))
        self._tell(*changes)
        self._files.tidy([flight.directory])
