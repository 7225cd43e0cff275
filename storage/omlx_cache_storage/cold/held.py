"""The pages that a cold tier has: finding, reading, marking and dropping them."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import ColdEntry, read_namespace
from omlx_cache_storage.cold.changes import Change, Demoted, Removed
from omlx_cache_storage.cold.contents import Contents, PageFile, columns_of
from omlx_cache_storage.cold.deletion import Deleter, Doomed, PendingDeletion
from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.health import Health
from omlx_cache_storage.cold.ledger import WAIT_SECONDS
from omlx_cache_storage.cold.reader import PageReader, open_page
from omlx_cache_storage.cold.sharing import Sharing
from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageUnreadable, UndecodablePage
from omlx_cache_storage.events import HOWS, OTHER_PROCESS, SILENT, Departures, EventLog, How
from omlx_cache_storage.eviction.ages import Learned
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, Clock, Keep
from omlx_cache_storage.format.names import PageName, StoredPage, page_path
from omlx_cache_storage.hints import SHARE, Pinned, Pins
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.measures import Histogram, Histograms
from omlx_cache_storage.page import PageId, PageInfo, Tail
from omlx_cache_storage.table import PageColumns

TOGETHER = 1024
"""Pages that are pinned, or let loose, while look-ups wait."""
Marked = tuple[PageFile, bool]
"""A file, and whether a pin kept it before."""
AHEAD_NS = 60 * 1_000_000_000
"""Times of files that are further ahead than this are no uses of other processes."""


class Cleared(NamedTuple):
    """The pages that a namespace had on the disk, and those of them that were deleted by now."""

    found: set[PageId]
    deleted: set[PageId]


class HeldPages:
    """Knows the page files under `directory` and when they were used, reads and deletes them. Any
    thread may call.

    Other processes change the directory too: `_sharing` tells of it. `policy` makes a policy for
    the contents, of what was learned before.

    `_lock` guards `limit_bytes`, `_contents`, `_health`, `_missing`, `_cleared`
    (namespaces to clear before the directory is read), `_left` (evicted pages that nobody took note
    of), `_unrecorded`, `_leaving` (they left the index, and their files go), `_refused_rank`,
    `_refused_until_ns` (when it is forgotten) and `_corrupt`; no I/O, sorting or making of paths
    under it.
    Deletions and publications keep apart by `_changing`, which is taken before `_lock`.
    """

    limit_bytes: int

    def __init__(
        self,
        directory: Path,
        fs: FileSystem,
        departures: Departures,
        policy: Callable[[Learned | None], Keep],
        clock: Clock,
        durability: Durability,
        events: EventLog = SILENT,
    ) -> None:
        self.directory = directory
        self._events = events
        self._timings = Histograms()
        self._clock = clock
        self._departures = departures
        self._fs = fs
        self._doomed = Doomed(fs)
        self._files = PageFiles(directory, fs, durability, self._doomed.delete_temporary)
        self._sharing = Sharing(directory, fs, self, self._files)
        self._deleter = Deleter(fs, self._doomed, self._sharing, self._is_indexed)
        self._lock = threading.Lock()
        self._make_policy = policy
        self._contents = Contents(policy(None))
        self.pins = Pins(partial(read_namespace, directory))
        self._health = Health()
        self._unrecorded: set[PageId] = set()
        self._leaving: set[PageId] = set()
        self._missing: list[PageId] = []
        self._cleared: set[BlockKey] = set()
        self._left: list[tuple[PageId, int]] = []
        # Pages worth less than the last one that was refused are refused unseen: a smaller one
        # would fill the gap behind a page that its chain lacks.
        self._refused_rank: tuple[int, int] | None = None
        self._refused_until_ns = 0
        self._corrupt = 0

    def info(self, page: PageId) -> PageInfo | None:
        """Return what is known of a page; None for one that this process cannot decode, too."""
        return self.find_all([page])[0]

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        with self._lock:
            found = self._contents.infos(pages)
            if self._health.hides_pages:
                hidden = map(self._health.is_hidden, pages)
                found = [None if h else one for one, h in zip(found, hidden, strict=True)]
            return found

    def hidden(self, pages: Iterable[PageId]) -> dict[PageId, str]:
        """Return why `info` is silent about pages that are here, in a word; nothing of others."""
        found: dict[PageId, str] = {}
        with self._lock:
            if self._contents.undecodable or self._health.hides_pages:
                for page in pages:
                    file = self._contents.file(page)
                    if file is not None and file.undecodable:
                        found[page] = UndecodablePage.reason
                    elif file is not None and self._health.is_hidden(page):
                        found[page] = PageUnreadable.reason
        return found

    def __contains__(self, page: PageId) -> bool:
        with self._lock:
            return self._contents.get(page) is not None

    def stored(self, page: PageId) -> StoredPage | None:
        """Return what is known of a page's file, None for one that is not here; reads nothing."""
        with self._lock:
            file = self._contents.get(page)
        return None if file is None else file.stored

    @contextlib.contextmanager
    def reading(self, page: PageId) -> Iterator[PageReader]:
        """Open a page; raises PageError, and forgets a page that is missing or wrong: that is one
        of `take_missing`.

        One that cannot be decoded here stays on the disk and is not opened again; one that the disk
        refuses stays too, is not opened for a while, and is one of `take_missing`. Blocks on the
        disk. A page evicted meanwhile stays readable until the block ends.
        """
        with self._lock:
            file = self._contents.file(page)
            begun = self._contents.get(page) is not None and self._health.begin_read(page)
        if file is None:
            raise PageUnreadable("the page is no longer on the disk")
        if file.undecodable:
            raise UndecodablePage("the page was found to be undecodable here")
        if not begun:
            raise PageUnreadable("the disk refused to be read a short while ago")
        stored = file.stored
        path = self._path(stored)
        try:
            with open_page(self._fs, path, stored.namespace, stored.name) as reader:
                yield reader
            with self._lock:
                self._health.end_read(page, whole=reader.was_read)
            if reader.was_read:
                self._timings.observe("page_read_seconds", reader.seconds)
        except FileNotFoundError as error:
            with self._lock:
                self._drop([page] if self._is_still(file) else [], "removed", "its file is gone")
                # Its file is gone already: a new one of that name is not.
                self._leaving.discard(page)
            self._departures.note([page], "removed")
            raise PageUnreadable(f"{os.path.basename(path)} is gone") from error
        except OSError as error:
            with self._lock:
                if self._health.fail_read(page, error):
                    self._missing.append(page)
            self._events.note_file("failed", stored, f"not read: {error.strerror or error}")
            raise PageUnreadable(f"{os.path.basename(path)}: {error}") from error
        except UndecodablePage as error:
            self.quarantine(page)
            self._events.note_file("failed", stored, f"{error.reason}: {error}")
            raise
        except (CorruptPage, ForeignPage) as error:
            self._events.note_file("failed", stored, f"{error.reason}: {error}")
            # Whoever asked for a page waits for nobody who has the directory.
            self._delete(self._drop_damaged(file), "damaged", 0.0)
            raise
        finally:
            with self._lock:
                self._health.leave_read()

    def unanswered(self, page: PageId) -> None:
        """Note a read that nobody waits for any more, as a failed one: it may end later."""
        error = OSError(errno.ETIMEDOUT, "the disk does not answer")
        with self._lock:
            file = self._contents.get(page)
            if file is not None and self._health.fail_read(page, error):
                self._missing.append(page)
        if file is not None:
            self._events.note_file("failed", file.stored, f"not read: {error.strerror}")

    def _is_still(self, file: PageFile) -> bool:
        """True unless a page was written anew since its file was found: that one is neither gone
        nor wrong. The lock is held."""
        return self._contents.file(file.id) is file

    def quarantine(self, page: PageId) -> None:
        """Keep a page that this process cannot decode out of its look-ups; its file stays."""
        with self._lock:
            self._contents.quarantine(page)

    def take_missing(self) -> list[PageId]:
        """Return, once, the pages that went with a directory that was removed or replaced, that
        were found to be gone or wrong, and those that the disk refused to read."""
        with self._lock:
            missing, self._missing = self._missing, []
            return missing

    def take_evicted(self) -> list[tuple[PageId, int]]:
        """Return, once, the pages that were evicted since the last call, and their stamps then."""
        with self._lock:
            left, self._left = self._left, []
            return left

    def timings(self) -> dict[str, Histogram]:
        """Return how long pages took to be read and written."""
        return self._timings.observed()

    def discard(self, pages: Iterable[PageId]) -> int:
        """Delete pages; return how many there were. Each is an event."""
        with self._lock:
            removed = self._drop(pages, "removed")
        self._delete(removed, "removed")
        return len(removed)

    def clear(self, namespace: BlockKey, seconds: float = WAIT_SECONDS) -> Cleared:
        """Delete every page of a namespace; waits for peer processes for `seconds` at a time.

        First its directory gets another name, so that no store serves its pages again, whatever
        becomes of deleting them: what the disk does not delete now is deleted later. A disk that
        refuses the new name too may serve them after a restart.
        """
        aside, alone = None, True
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._changing(seconds))
            except OSError:
                alone = False
                with self._lock:
                    if self._sharing.is_lost or not self._sharing.ledger.is_open:
                        # What is read of the directory meanwhile, or when it is back, has it still.
                        self._cleared.add(namespace)
            with self._lock:
                files = self._contents.files()
            files = [file for file in files if file.namespace == namespace]
            with contextlib.suppress(OSError):
                aside = self._files.set_aside(namespace)
            with self._lock:
                found = [file.id for file in files if self._is_still(file)]
                removed = self._drop(found, "removed", None)
            pages = {stored.name.id for stored in removed}
            shards = {self._files.directory_of(stored) for stored in removed}
            gone = self._pending(removed, "removed")
            if aside is not None:
                below = [file.path.split(os.sep)[-2:] for file in gone]
                gone = [
                    file._replace(path=os.path.join(aside, *names))
                    for file, names in zip(gone, below, strict=True)
                ]
            self._doomed.keep(*gone)
        self._deleter.delete(gone, seconds if alone else 0.0)
        with self._lock:
            self._leaving -= pages
        if aside is not None:
            # Without the directory's lock too: nobody else knows the name.
            self._files.remove_tree(aside)
            self._files.end_aside(namespace, aside)
            with contextlib.suppress(OSError), self._changing(seconds if alone else 0.0):
                self._sharing.tidy(shards)
        left = {f.page.name.id for f in gone if f.page is not None and self._fs.exists(f.path)}
        return Cleared(pages, pages - left)

    def dismiss(self, pages: Iterable[PageId]) -> None:
        """Forget pages whose files the writer's thread deletes; touches no disk."""
        with self._lock:
            removed = self._drop(pages, "removed")
        self._doomed.keep(*self._pending(removed, "removed"))
        self._left_index(removed)

    def tails(self, parent: BlockKey) -> set[Tail]:
        return self.tails_of([parent])

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        with self._lock:
            return self._contents.tails_of(parents)

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        with self._lock:
            return self._contents.branches(keys)

    @property
    def patience_ns(self) -> int:
        return self._contents.policy.patience_ns

    def note_shift(self, stamp_ns: int, used_ns: int) -> None:
        with self._lock:
            self._contents.policy.shifted(stamp_ns, used_ns)

    def learned(self) -> Learned | None:
        with self._lock:
            return self._contents.policy.learned()

    def entries(self) -> list[ColdEntry]:
        """Return every page, the first to be evicted first."""
        return sorted(self.listing(), key=lambda e: (e.used_ns, -e.stored.position, e.page))

    def listing(self) -> list[ColdEntry]:
        """Return every page, in no order: nothing is sorted for it."""
        with self._lock:
            files = self._contents.files()
        return [ColdEntry(self.directory, file.stored, file.stamp_ns) for file in files]

    def columns(self) -> PageColumns:
        """Return every page, in no order, without an object for each."""
        with self._lock:
            files = self._contents.files()
        return columns_of(files)

    def touch(
        self,
        chain: Iterable[PageId],
        stamp_ns: int | None = None,
        since_ns: int = 0,
        *,
        used: bool = True,
    ) -> None:
        """Mark pages as used at a stamp of the clock, now by default, but those that were used
        later than that and than `since_ns`. `used`: it is a request that wants them.

        The disk learns it from `settle`.
        """
        with self._lock:
            stamp_ns = self._clock.now() if stamp_ns is None else stamp_ns
            chain = chain if isinstance(chain, list) else list(chain)
            loose = self._loose(chain)
            if self._contents.kept_bytes:
                # Its file learns of the use, which counts once its pin is over.
                self._unrecorded.update(filter(self._is_kept, chain))
            self._moved(self._contents.touch(loose, stamp_ns, since_ns, used=used), stamp_ns)

    def demote(self, pages: Iterable[PageId], stamp_ns: int | None = None) -> None:
        """Make pages the first to be evicted, the deepest of them first, after a restart too."""
        with self._lock:
            stamp_ns = self._clock.superseded() if stamp_ns is None else stamp_ns
            self._moved(self._contents.place(self._loose(pages), stamp_ns), stamp_ns)

    def _moved(self, pages: Iterable[PageId], stamp_ns: int) -> None:
        """Note that pages have another stamp: the disk is to learn it."""
        self._unrecorded.update(pages)
        if self._refused_rank is not None and stamp_ns < self._refused_rank[0]:
            self._refused_rank = None

    def _loose(self, pages: Iterable[PageId]) -> Iterable[PageId]:
        if not self._contents.kept_bytes:
            return pages
        return [page for page in pages if not self._is_kept(page)]

    def _is_kept(self, page: PageId) -> bool:
        file = self._contents.file(page)
        return file is not None and file.kept

    def repin(self, pages: Sequence[PageId]) -> Pinned:
        """Keep those of some pages that pins want, root first; let go of those that they do not."""
        with self._lock:
            found = [file for page in pages if (file := self._contents.get(page)) is not None]
            self._keep_some((file, file.kept) for file in found)
            costs = [file.cost for file in found if file.kept]
            return Pinned(len(found), len(costs), sum(costs))

    def _keep(self, namespace: BlockKey, page: PageId, cost: int) -> int:
        """Return until when a pin keeps a page of which `cost` more would be pinned, 0 for one that
        none keeps: all pins together have their share of the limit."""
        until_ns = self.pins.until(namespace, page.key) if self.pins else 0
        fits = (self._contents.kept_bytes + cost) * SHARE <= self.limit_bytes
        return until_ns if until_ns and until_ns > self._clock.now() and fits else 0

    def _put(self, stored: StoredPage, stamp_ns: int, *, used: bool) -> PageFile:
        """Index a page that is not here, as long as pins keep it or as one that was used then;
        return its record."""
        kept_ns = self._keep(stored.namespace, stored.name.id, stored.cost)
        # What is pinned has the time when that ends, in memory too: no request is as late.
        file = self._contents.add(stored, max(stamp_ns, kept_ns), used=used and not kept_ns)
        self._contents.keep(file, kept_ns > 0)
        return file

    def _go_by_pins(self, namespaces: Collection[BlockKey]) -> None:
        """Keep what pins want now, root first, and let go of what they do not."""
        with self._lock:
            files = self._contents.files()
        files = [file for file in files if file.namespace in namespaces or file.kept]
        files.sort(key=lambda file: file.position)
        marked = [(file, file.kept) for file in files]
        for part in self._in_parts(marked):
            for file, _ in part:
                self._contents.keep(file, False)
        for part in self._in_parts(marked):
            self._keep_some(part)

    def _in_parts(self, files: Sequence[Marked]) -> Iterator[Sequence[Marked]]:
        """Yield some of the files at a time, and hold the lock until the next."""
        for start in range(0, len(files), TOGETHER):
            with self._lock:
                yield files[start : start + TOGETHER]

    def _keep_some(self, files: Iterable[Marked]) -> None:
        """Keep those of some files that pins want; let go of those that were kept and are not."""
        now, places = self._clock.now(), dict[int, list[PageId]]()
        for file, was_kept in files:
            if not self._is_still(file):
                continue
            until_ns = self._keep(file.namespace, file.id, 0 if file.kept else file.cost)
            self._contents.keep(file, until_ns > 0)
            if until_ns or was_kept:
                places.setdefault(until_ns or now, []).append(file.id)
        for stamp_ns, placed in places.items():
            self._contents.place(placed, stamp_ns)
        self._refused_rank = None

    # What other processes do, and what they did not tell.

    @property
    def generation(self) -> int:
        """How often changes of other processes were taken in."""
        return self._sharing.generation

    @property
    def is_lost(self) -> bool:
        """True when changes were missed: the directory is to be read again, by `settle`. Not of one
        that cannot be had at all."""
        return self._sharing.is_lost and self._sharing.ledger.is_open

    def refresh(self) -> bool:
        """Take in what other processes changed; False when that is nothing. Reads a few bytes when
        nothing was changed; any thread may call, and nothing raises."""
        return self._sharing.refresh()

    def close(self) -> None:
        """Leave the directory to others: what they do is not seen any more. Pages stay readable."""
        self._sharing.close()

    def take_in(self, page: StoredPage, stamp_ns: int) -> None:
        """Index a page that another process wrote."""
        name = page.name.id
        stamp_ns = min(stamp_ns, self._clock.now())
        with self._lock:
            file = self._contents.file(name)
            if file is not None:
                stamp_ns = max(stamp_ns, file.stamp_ns)
            before = self._pop(name)
            self._leaving.discard(name)
            self._put(page, stamp_ns, used=False)
            self._events.note_file("stored", page, OTHER_PROCESS)
        if before is not None and before.name != page.name:
            # Whoever replaced it deletes its file and says so, or could not.
            self._doomed.keep(*self._pending([before], "disk"))

    def leave(self, page: StoredPage, why: str) -> None:
        """Forget a page whose file another process deleted."""
        name = page.name.id
        self._doomed.left(self._path(page))
        with self._lock:
            file = self._contents.file(name)
            if file is None or not self._has_file(page.name):
                return
            self._left.append((name, file.stamp_ns))
            self._pop(name)
            self._leaving.discard(name)
            detail = f"{OTHER_PROCESS}: damaged" if why == "damaged" else OTHER_PROCESS
            self._events.note_file("evicted" if why == "disk" else "removed", page, detail)
        for how in HOWS:
            self._departures.note([name] if how == why else [], how)

    def place(self, pages: Iterable[PageId], stamp_ns: int) -> None:
        """Put pages where another process has put them in the order."""
        with self._lock:
            self._contents.place(self._loose(pages), stamp_ns)

    def knows(self, name: PageName, path: str) -> bool:
        """True for a page's file that is indexed, or about to be deleted."""
        with self._lock:
            return name.id in self._leaving or self._has_file(name) or path in self._doomed

    def _record_recency(self) -> None:
        """Give files the times at which their pages were used; raises nothing."""
        now = self._clock.now()
        with self._lock:
            pages, self._unrecorded = self._unrecorded, set()
            files = [file for page in pages if (file := self._contents.file(page)) is not None]
            # Of what counts as used later than now others know that it is in use, again and again.
            self._unrecorded.update(f.id for f in files if f.stamp_ns > now and not f.kept)
        demoted: dict[int, list[PageId]] = {}
        for file in files:
            path, time_ns = self._path(file.stored), min(file.stamp_ns, now)
            with contextlib.suppress(OSError):
                if time_ns <= SUPERSEDED_NS:
                    demoted.setdefault(time_ns, []).append(file.id)
                elif not self._may_record(path, time_ns, file.recorded_ns):
                    continue
                self._fs.set_times(path, time_ns)
                file.recorded_ns = time_ns
        if demoted:
            with contextlib.suppress(OSError), self._changing():
                self._tell(*(Demoted(at, tuple(pages)) for at, pages in demoted.items()))

    def _may_record(self, path: str, time_ns: int, own_ns: int) -> bool:
        """True unless somebody else has used a page later. A time of this process's own is taken
        back, and one that is yet to come: a clock was ahead."""
        info = self._fs.own_file(path)
        if info is None:
            return False
        known_ns = info.st_mtime_ns
        return known_ns < time_ns or known_ns == own_ns or known_ns > self._clock.now() + AHEAD_NS

    def _catch_up(self, pages: Iterable[PageId]) -> bool:
        """Ask the files of pages that are about to leave when they were used, by whomever; True
        when that is news. The directory is held."""
        news = False
        for page in pages:
            with self._lock:
                file = self._contents.file(page)
                if file is None or page in self._unrecorded:
                    continue
                stamp_ns = file.stamp_ns
            info = self._fs.own_file(self._path(file.stored))
            if info is None:
                news = True
                self.leave(file.stored, "removed")
                self._tell(Removed(file.stored, "removed"))
            elif info.st_mtime_ns > stamp_ns and info.st_mtime_ns != file.recorded_ns:
                with self._lock:
                    used_ns = min(info.st_mtime_ns, self._clock.now())
                    if used_ns > stamp_ns and page in self._contents:
                        self._contents.touch([page], used_ns, used=False)
                        news = True
                        if used_ns < info.st_mtime_ns:
                            # Once: its file would say so until that time has come.
                            self._unrecorded.add(page)
        return news

    def _drop(self, pages: Iterable[PageId], why: How, detail: str | None = "") -> list[StoredPage]:
        """Take pages out of the index whose files are deleted next, and return them; the lock is
        held. Each is an event, but without a `detail`."""
        removed: list[StoredPage] = []
        for page in pages:
            file = self._contents.file(page)
            if file is None:
                continue
            if why == "disk":
                self._left.append((page, file.stamp_ns))
            else:
                # Memory may have taken it for written meanwhile.
                self._missing.append(page)
            removed.append(file.stored)
            self._pop(page)
        if detail is not None:
            self._events.note_files("evicted" if why == "disk" else "removed", removed, detail)
        if why != "removed":
            self._departures.note((stored.name.id for stored in removed), why)
        return removed

    def _drop_damaged(self, file: PageFile) -> list[StoredPage]:
        """Take a damaged page out of the index, unless it was written anew since it was found."""
        with self._lock:
            self._corrupt += 1
            return self._drop([file.id] if self._is_still(file) else [], "damaged", "damaged")

    def _pop(self, page: PageId) -> StoredPage | None:
        self._unrecorded.discard(page)
        stored = self._contents.pop(page)
        if stored is not None:
            self._leaving.add(page)
            self._refused_rank = None
            self._health.forget(page)
        return stored

    def _drop_again(self, file: PendingDeletion) -> None:
        """Leave out of what was read a page that somebody has dropped and whose file is there."""
        if file.page is not None and file.why != "disk" and self._has_file(file.page.name):
            self._pop(file.page.name.id)
            self._leaving.discard(file.page.name.id)
            self._doomed.keep(file)

    def _path(self, stored: StoredPage) -> str:
        return page_path(self.directory, stored.namespace, stored.name)

    def _changing(self, seconds: float = WAIT_SECONDS) -> AbstractContextManager[None]:
        """Keep everybody else from changing the directory, and know exactly what is in it."""
        return self._sharing.changing(seconds)

    def _tell(self, *changes: Change) -> None:
        """Tell other processes what was changed; the directory is held."""
        self._sharing.tell(*changes)

    def _has_file(self, name: PageName) -> bool:
        """True when just this file is that of an indexed page; the lock is held."""
        file = self._contents.file(name.id)
        return file is not None and file.stored.name == name

    def _delete(
        self,
        removed: Sequence[StoredPage],
        why: How = "disk",
        seconds: float = WAIT_SECONDS,
        *,
        held: bool = False,
    ) -> None:
        """Delete the files of pages that have left the index; `held`: the caller holds the
        directory, for these at least."""
        files = self._pending(removed, why)
        if held:
            self._deleter.delete_held(files)
        else:
            self._deleter.delete(files, seconds)
        self._left_index(removed)

    def _pending(self, removed: Sequence[StoredPage], why: How) -> list[PendingDeletion]:
        return [PendingDeletion(page, self._path(page), page.cost, why) for page in removed]

    def _left_index(self, removed: Iterable[StoredPage]) -> None:
        """Note that files of pages that have left the index are gone, or doomed."""
        with self._lock:
            self._leaving.difference_update(stored.name.id for stored in removed)

    def _is_indexed(self, name: PageName) -> bool:
        """True for the file of a page that is indexed."""
        with self._lock:
            return self._has_file(name)
