"""The cold tier: one immutable safetensors file per page, under a budget of physical bytes."""

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from omlx_cache_storage.breaker import OPENING
from omlx_cache_storage.cold.catalog import ColdEntry
from omlx_cache_storage.cold.deletion import Deleter
from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.eviction import DIRECTORY_SLACK_BYTES, Evictor
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.index import Index, PageFile, PendingDeletion
from omlx_cache_storage.cold.ledger import HOLD_FILES, LedgerBusy
from omlx_cache_storage.cold.opening import Opening
from omlx_cache_storage.cold.page_reader import PageReader
from omlx_cache_storage.cold.page_writer import PageWriter
from omlx_cache_storage.cold.root import Root
from omlx_cache_storage.cold.shared_limits import DailyWrites, SharedLimits
from omlx_cache_storage.cold.sharing import Sharing
from omlx_cache_storage.documents import format_size
from omlx_cache_storage.errors import (
    CorruptPage,
    ForeignPage,
    PageGone,
    PageUnreadable,
    UndecodablePage,
)
from omlx_cache_storage.events import SILENT, Departures, EventLog
from omlx_cache_storage.eviction.keep import NEVER_NS, Clock, Keep, Learned, Lru
from omlx_cache_storage.eviction.order import LocalTier
from omlx_cache_storage.format.names import StoredPage
from omlx_cache_storage.page import COLD, Page, PageId, PageInfo
from omlx_cache_storage.pins import SHARE, Pinned
from omlx_cache_storage.stats import ColdUsage

_log = logging.getLogger(__name__)

EVICTED_BYTES = 256 * 1024 * 1024
"""Bytes that are evicted before the disk is asked whether that helps."""


class ColdTier(LocalTier[PageFile]):
    """Finds and reads the pages of a directory, and has others write, evict and delete them. All
    use one `Index`, whose lock guards their knowledge.

    Any thread may read and discard; `open`, `write`, `settle` and `close` belong to one thread at a
    time.
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        *,
        min_free_bytes: int = 0,
        durability: Durability = "none",
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        encode: Callable[[Page], Page] | None = None,
        departures: Departures | None = None,
        daily_bytes: int = 0,
        policy: Callable[[Learned | None], Keep] = Lru,
        derived: bool = False,
        events: EventLog = SILENT,
        memory: Path | None = None,
        parents: bool = False,
        sharing_type: type[Sharing] = Sharing,
        deleter_type: type[Deleter] = Deleter,
        evictor_type: type[Evictor] = Evictor,
        limits_type: type[SharedLimits] = SharedLimits,
        opening_type: type[Opening] = Opening,
        writer_type: type[PageWriter] = PageWriter,
    ) -> None:
        fs, clock = fs or FileSystem(), clock or Clock()
        self.directory = directory
        self._fs = fs
        departures = departures or Departures()
        index = Index(directory, limit_bytes, clock, policy, departures, events)
        files = PageFiles(directory, fs, durability, index.doom_temporary)
        sharing = sharing_type(directory, fs, index, files)
        deleter = deleter_type(index, files, sharing)
        evictor = evictor_type(index, files, sharing, deleter, min_free_bytes)
        limits = limits_type(index, files, sharing, evictor, derived=derived)
        self._opening = opening_type(
            index,
            files,
            sharing,
            evictor,
            limits,
            Root(directory, fs, durability, memory, parents=parents),
        )
        self._writing = writer_type(
            index,
            files,
            sharing,
            deleter,
            evictor,
            limits,
            self._opening.load,
            encode,
            DailyWrites(directory, sharing.ledger, daily_bytes, fs, clock, durability),
        )
        self._index, self._files, self.sharing = index, files, sharing
        self._lock, self._pages = index.lock, index.contents
        self._deleter, self.evictor, self._limits = deleter, evictor, limits
        self.pins = index.pins
        self.clear, self.discard = deleter.clear, deleter.discard
        self.write = self._writing.write
        self.refresh, self.close = sharing.refresh, sharing.close

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        found: list[PageInfo | None] = []
        with self._index.lock:
            health = self._index.health
            hides = health.hides_pages
            for file in map(self._index.contents.get, pages):
                found.append(
                    None
                    if file is None or file.undecodable or (hides and health.is_hidden(file.id))
                    else PageInfo(file.position, file.held, file.nbytes, COLD)
                )
        return found

    def hidden(self, pages: Iterable[PageId]) -> dict[PageId, str]:
        found: dict[PageId, str] = {}
        with self._index.lock:
            if self._index.contents.undecodable or self._index.health.hides_pages:
                for file in filter(None, map(self._index.contents.get, pages)):
                    if file.undecodable:
                        found[file.id] = UndecodablePage.reason
                    elif self._index.health.is_hidden(file.id):
                        found[file.id] = PageUnreadable.reason
        return found

    def __contains__(self, page: PageId) -> bool:
        with self._index.lock:
            file = self._index.contents.get(page)
            return file is not None and not file.undecodable

    def stored(self, page: PageId) -> StoredPage | None:
        with self._index.lock:
            file = self._index.contents.usable(page)
        return None if file is None else file.stored

    @contextlib.contextmanager
    def reading(self, page: PageId) -> Iterator[PageReader]:
        """Open a page; raises PageError, and drops a page that is missing or wrong: that is one of
        `take_lost`.

        A page that cannot be decoded here stays on the disk and is not opened again. An unreadable
        page stays too, is not opened for a while, and is one of `take_lost`. Blocks on the disk. A
        page evicted meanwhile stays readable until the block ends.
        """
        with self._index.lock:
            file = self._index.contents.get(page)
            if file is None:
                raise PageGone("the page is no longer on the disk")
            if file.undecodable:
                raise UndecodablePage("the page was found to be undecodable here")
            if not self._index.health.begin_read(page):
                raise PageUnreadable("the disk refused to be read a short while ago")
        stored = file.stored
        path = self._index.path(stored)
        try:
            with self._fs.reading(path) as fd:
                reader = PageReader(self._fs, fd, path, stored)
                yield reader
            with self._index.lock:
                self._index.health.end_read(page, whole=reader.was_read)
            if reader.was_read:
                self._index.events.timings.observe("page_read_seconds", reader.seconds)
        except FileNotFoundError as error:
            with self._index.lock:
                gone = [page] if self._index.is_still(file) else []
                self._index.drop(gone, "removed", "its file is gone")
                # A new file of that name is another one.
                self._index.doomed.end(stored.name)
            self._index.departures.note(gone, "removed")
            if self._fs.exists(path):
                # A link has its name, or others may change it: nobody evicts a page like that.
                raise PageUnreadable(f"{os.path.basename(path)}: {error.strerror}") from error
            raise PageGone(f"{os.path.basename(path)} is gone") from error
        except OSError as error:
            self._fail_read(file, error)
            raise PageUnreadable(f"{os.path.basename(path)}: {error}") from error
        except UndecodablePage as error:
            with self._index.lock:
                # Out of lookups; its file stays.
                self._index.contents.quarantine(page)
            self._index.events.note_file("failed", stored, f"{error.reason}: {error}")
            raise
        except (CorruptPage, ForeignPage) as error:
            self._index.events.note_file("failed", stored, f"{error.reason}: {error}")
            # A reader of a page does not wait for the process that holds the directory.
            self._deleter.delete(self._index.drop_damaged(file), 0.0)
            raise
        finally:
            with self._index.lock:
                self._index.health.reads.left()

    def unanswered(self, page: PageId) -> None:
        """Note an abandoned read as a failed one: it may end later."""
        with self._index.lock:
            file = self._index.contents.usable(page)
        if file is not None:
            self._fail_read(file, OSError(errno.ETIMEDOUT, "the disk does not answer"))

    def _fail_read(self, file: PageFile, error: OSError) -> None:
        with self._index.lock:
            if self._index.health.fail_read(file.id, error):
                self._index.lost.append((file.id, NEVER_NS))
        self._index.events.note_file("failed", file.stored, f"not read: {error.strerror or error}")

    def take_lost(self) -> list[tuple[PageId, int]]:
        """Return, once, the pages that left the disk since the last call, each with its stamp then;
        `NEVER_NS` for one that was deleted, found missing, wrong or unreadable, or went with its
        directory."""
        with self._index.lock:
            lost, self._index.lost = self._index.lost, []
            return lost

    def listing(self) -> list[ColdEntry]:
        return [ColdEntry(self.directory, file.stored, file.stamp_ns) for file in self.records()]

    def touch(
        self,
        chain: Iterable[PageId],
        stamp_ns: int | None = None,
        since_ns: int = 0,
        *,
        used: bool = True,
    ) -> None:
        index, contents = self._index, self._index.contents
        with index.lock:
            stamp_ns = index.clock.now() if stamp_ns is None else stamp_ns
            if contents.undecodable or contents.pinned_bytes:
                here = list(filter(None, map(contents.usable, chain)))
                chain = [file.id for file in here]
                # The end of its pin is its stamp. Its file learns of the use, which counts then.
                index.unrecorded.update(file.id for file in here if file.pinned_ns)
            latest_ns = max(stamp_ns, since_ns)
            index.unrecorded.update(contents.touch(chain, stamp_ns, latest_ns, used=used))
            if index.refused_rank is not None and stamp_ns < index.refused_rank[0]:
                index.refused_rank = None

    def demote(self, pages: Iterable[PageId], stamp_ns: int) -> None:
        """Make pages the first to be evicted, the deepest of them first, after a restart too."""
        self._index.place(pages, stamp_ns, own=True)

    def repin(self, pages: Sequence[PageId]) -> Pinned:
        with self._index.lock:
            return self._index.repin(
                filter(None, map(self._index.contents.usable, pages)),
                self._index.limit_bytes // SHARE,
            )

    def open(self, budget: Callable[[int], int] | None = None) -> None:
        """Make the directory, delete leftovers of dead writers, index the pages, and evict down to
        the budget. `budget` may derive this process's budget from the bytes found.

        A directory that went away, or whose parents are missing, is not made. A failing disk leaves
        an empty tier whose state says why; `write` and `settle` try it again. Nothing raises.
        """
        self._limits.budget_of = budget
        with self._index.lock:
            self._index.health.opening = OPENING
        with contextlib.suppress(OSError):
            self._opening.load()
        if self._writing.daily_writes.limit_bytes:
            self._writing.daily_writes.read()
        self._shrink()
        with self._index.lock:
            self.evictor.peak = self.evictor.used_bytes()

    def settle(self) -> None:
        """Record recency on the disk and evict down to the budget. Also notice a directory that was
        removed or replaced, a changed budget, and writers that ended. Writer thread only; raises
        nothing."""
        for _ in range(2):
            try:
                if not self.sharing.follows:
                    self._opening.load()
                self.evictor.record_recency()
                with self.sharing.changing():
                    self._limits.heed()
                    self.sharing.recover()
                break
            except LedgerBusy:
                # Where more was changed than could be followed, the directory is read again.
                if not self.sharing.fell_behind:
                    return
            except OSError:
                return
        self._shrink()

    def _shrink(self) -> None:
        if self._index.doomed:
            self._deleter.retry()
        evicted, over = 0, partial(self.evictor.lacks, -DIRECTORY_SLACK_BYTES)
        with contextlib.suppress(OSError):
            while self.evictor.known_bytes() > self._index.limit_bytes and (
                some := self._evict_some(over)
            ):
                evicted += len(some)
        if evicted:
            _log.info(
                "the budget of %s is %s: %s pages that were used longest ago were evicted",
                *(self.directory, format_size(self._index.limit_bytes), f"{evicted:,}"),
            )

    def _evict_some(self, lacks: Callable[[], int]) -> list[PendingDeletion]:
        """Evict some pages for the lacking bytes, or the first ones where all are not enough.
        Raises OSError."""
        with self.sharing.changing():
            self._limits.heed()
            victims = self.evictor.victims(lacks, None, most=HOLD_FILES)
            return self.evictor.expel(
                victims.pages if victims.enough else self.evictor.first(HOLD_FILES)
            )

    def keep_free(self) -> int:
        """Evict until the disk has its free space, unless the process waits; return how many pages
        were evicted for that. Belongs to the thread that calls `settle`; raises nothing."""
        freed = 0
        with contextlib.suppress(OSError):
            while not self.evictor.waits and (some := self._free_some()):
                freed += some
        return freed

    def _free_some(self) -> int:
        """Evict for a part of the bytes that the disk lacks; 0 when that does not help. Raises
        OSError."""
        short, lacks_files = self.evictor.lacking(0)
        if short <= 0 and not lacks_files:
            return 0
        spare = partial(self._fs.free_bytes if short > 0 else self._fs.spare_files, self.directory)
        before, evicted = spare() or 0, 0
        with self._index.lock:
            part = sum(file.cost for file in islice(self._index.contents.in_order(), HOLD_FILES))
            if short > 0:
                part = min(short, EVICTED_BYTES, self._index.contents.nbytes)
        while part > 0 and (some := self._evict_some(partial(int, part))):
            part -= sum(file.cost for file in some)
            evicted += len(some)
        return evicted if (spare() or 0) > before else 0

    def usage(self) -> ColdUsage:
        day = self._writing.daily_writes
        with self._index.lock:
            used = self.evictor.used_bytes()
            self.evictor.peak = max(self.evictor.peak, used)
            return ColdUsage(
                pages=len(self._index.contents),
                nbytes=used,
                peak_bytes=self.evictor.peak,
                limit_bytes=self._index.limit_bytes,
                evicted_pages=self.evictor.evicted,
                refused_pages=self.evictor.refused,
                corrupt_pages=self._index.corrupt,
                undecodable_pages=self._index.contents.undecodable,
                ignored_files=self._opening.ignored,
                state=self._index.health.state,
                written_bytes=self._writing.written,
                rewritten_bytes=self._writing.rewritten,
                rationed_pages=day.rationed_pages,
                day_written_bytes=day.written_bytes,
                day_limit_bytes=day.limit_bytes,
                patience_seconds=self._index.contents.policy.patience_ns / 1e9,
                room=self.room,
            )

    @property
    def room(self) -> str:
        day = self._writing.daily_writes
        return (
            "inodes"
            if self.evictor.lacks_files
            else "short"
            if self.evictor.is_short
            else "rationed"
            if day.limit_bytes and day.is_spent
            else "ok"
        )

    @property
    def trouble(self) -> str:
        """The state while writes are refused, else ""."""
        with self._index.lock:
            return self._index.health.trouble

    def check_integrity(self) -> None:
        self._index.doomed.check_integrity()
        with self._index.lock:
            assert not any(flight.own for flight in self.sharing.flights.values())
            self._index.contents.check_integrity()
            assert self.evictor.used_bytes() <= self._index.limit_bytes

    @property
    def limit_bytes(self) -> int:
        return self._index.limit_bytes
