"""The cold tier: one immutable safetensors file per page, under a budget of physical bytes."""

import contextlib
import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from omlx_cache_storage.cold.catalog import Found
from omlx_cache_storage.cold.collector import uncollected
from omlx_cache_storage.cold.contents import Candidate, Contents, Victims
from omlx_cache_storage.cold.disk import Durability, FileSystem, physical_bytes
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.filling import Files
from omlx_cache_storage.cold.health import NO_ROOM, Health
from omlx_cache_storage.cold.held import HeldPages
from omlx_cache_storage.cold.ration import Ration
from omlx_cache_storage.cold.records import SMALL_FILE_BYTES, StoredPage
from omlx_cache_storage.departures import Departures
from omlx_cache_storage.eviction.learned import Learned
from omlx_cache_storage.eviction.policies import lru
from omlx_cache_storage.eviction.policy import EvictionPolicy
from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.names import PageName, name_of, page_path
from omlx_cache_storage.hints import Pinned
from omlx_cache_storage.page import Page, PageId
from omlx_cache_storage.recency import Clock
from omlx_cache_storage.stats import ColdUsage
from omlx_cache_storage.tier import WriteResult

_log = logging.getLogger(__name__)

NO_ROOM_TRIES = 3
"""How often room is made for a page that the disk had none for, each time twice as much."""
FILE_SLACK_BYTES = 16 * 1024
"""More than a file takes beside header and payload: its last block, and its name."""
DIRECTORY_SLACK_BYTES = 48 * 1024
"""More than the directories take that a write may make on its way."""


class ColdTier(HeldPages):
    """Holds page files; physical bytes, temporary files and directories included, stay under
    `limit_bytes`.

    `_lock` guards `limit_bytes`, `_reserved`, `_impatient` and the counts `_peak`, `_evicted`,
    `_refused`, `_written` and `_rewritten` (bytes) as well. Any thread may read and discard;
    `open`, `write` and `settle` belong to one thread at a time.
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
        policy: Callable[[Learned | None], EvictionPolicy] | None = None,
    ) -> None:
        super().__init__(
            directory,
            fs or FileSystem(),
            lambda shards: self._files.tidy(shards),
            departures or Departures(),
            policy or lru,
        )
        self._files = PageFiles(directory, self._fs, durability, self._deleter.delete_temporary)
        self.limit_bytes = limit_bytes
        self._min_free = min_free_bytes
        self._encode = encode
        self._clock = clock or Clock()
        self._reserved = 0
        self._peak = 0
        self._evicted = 0
        self._refused = 0
        self._impatient = 0
        self._written = 0
        self._rewritten = 0
        self._once_written = Departures()
        self._ration: Ration | None = None
        if daily_bytes:
            self._ration = Ration(directory, daily_bytes, self._fs, self._clock, durability)

    def open(self, budget: Callable[[int], int] | None = None) -> None:
        """Make the directory, delete leftovers of dead writers, index what is there, and evict
        down to the budget, which `budget` may derive from the bytes found.

        A disk that refuses leaves an empty tier whose state says why, and is asked again by
        `write` and `settle`; nothing raises.
        """
        with contextlib.suppress(OSError):
            self._load()
        if self._ration is not None:
            self._ration.open()
        if budget is not None:
            limit_bytes = budget(self.usage().nbytes)
            with self._lock:
                self.limit_bytes = limit_bytes
        self._shrink()
        with self._lock:
            self._peak = self._used_bytes()

    def _load(self) -> None:
        """Index the directory if it is not the one that was indexed; raises OSError."""
        try:
            if self._files.is_ours():
                with self._lock:
                    self._health.end_open()
                return
            contents = self._read_directory()
        except OSError as error:
            with self._lock:
                known = self._health.state
                self._health.fail_open(error)
                news = self._health.state != known
            if news:
                _log.warning("no cold tier: %s", error.strerror or error)
            raise
        with self._lock:
            before, self._contents = self._contents, contents
            self._deleter.forget()
            self._refused_rank = None
            self._pins.all_left()
            self._missing += [page for page in before if page not in contents]
            self._unrecorded = {page for page in self._unrecorded if page in contents}
            self._health = Health()
            self._note_peak()

    @uncollected()
    def _read_directory(self) -> Contents:
        """Return what is in the directory, made if need be; raises OSError."""
        files, now = Files(), time.time_ns()

        def take(found: Found, name: PageName) -> str | None:
            stored = StoredPage(found.namespace, name, found.nbytes)
            useless = files.take(stored, min(found.mtime_ns, now))
            return None if useless is None else self._path(StoredPage._make(useless))

        self._files.inventory(take)
        with self._lock:
            learned = self._contents.policy.learned()
        contents = Contents(self._make_policy(learned))
        contents.fill(files)
        return contents

    def _used_bytes(self) -> int:
        held = self._contents.nbytes + self._reserved + self._deleter.nbytes
        return held + self._files.overhead_bytes

    def _note_peak(self) -> None:
        self._peak = max(self._peak, self._used_bytes())

    def write(self, page: Page, time_ns: int, document: Mapping[str, object]) -> WriteResult:
        """Publish a page whole or not at all, and say what was done.

        Evicts only pages that leave before this one: never its chain's root for its deep end.
        Raises OSError when the disk refuses, for want of room only after some were evicted, and
        ValueError for a payload of another size than the page's tensors; nothing is left behind
        then. A page that could not be read is written again. Writer thread only.
        """
        self._load()
        candidate = Candidate(page.meta.id, page.meta.position, time_ns)
        decided = self._decided(candidate, page.meta.held)
        if decided is not None:
            return decided
        found = self._adopt(page, candidate)
        if found is not None:
            return found
        if self._encode is not None:
            page = self._encode(page)
        meta = page.meta
        size = memoryview(page.payload).nbytes
        if size != meta.nbytes:
            raise ValueError(f"a payload of {size} bytes for tensors of {meta.nbytes}")
        header = encode_header(meta, payload_checksum([page.payload]))
        expected = len(header) + meta.nbytes + FILE_SLACK_BYTES
        expected += self._files.document_bytes(meta.namespace, document)
        rationed = _blocks(len(header) + size) if self._ration is not None else 0
        if self._ration is not None and not self._ration.take(candidate.page, rationed):
            return "rationed"
        result: WriteResult = "full"
        try:
            result = self._place(page, header, expected, candidate, document)
            return result
        except OSError as error:
            with self._lock:
                self._health.fail_write(error)
            raise
        finally:
            if self._ration is not None and result != "written":
                self._ration.give_back(rationed)

    def _decided(self, candidate: Candidate, held: int) -> WriteResult | None:
        """Return what `write` answers at once for a page that holds so many tokens, None when room
        must be made for it."""
        with self._lock:
            old = self._contents.get(candidate.page)
            unreadable = self._health.is_unreadable(candidate.page)
            if old is not None and old.held >= held and not unreadable:
                return "present"
            if self._refused_rank is not None and self._clock.now() >= self._refused_until_ns:
                self._refused_rank = None
            if self._refused_rank is not None and candidate.rank < self._refused_rank:
                self._refused += 1
                return "refused"
        if self._ration is not None and self._ration.is_closed(candidate.page):
            return "rationed"
        return None

    def _adopt(self, page: Page, candidate: Candidate) -> WriteResult | None:
        """Index a page's file that another process wrote meanwhile, as `open` would have, if there
        is room for it; None where there is none, or where this process knows of one."""
        name, namespace = name_of(page.meta), page.meta.namespace
        with self._lock:
            known = name.id in self._contents or name.id in self._leaving
            if known or self._health.is_unreadable(name.id):
                return None
        path = page_path(self.directory, namespace, name)
        info = self._fs.own_file(path)
        if info is None or self._deleter.is_pending(path):
            return None
        nbytes = physical_bytes(info)
        refusal = self._make_room(nbytes, candidate)
        if refusal is not None:
            return refusal
        with self._lock:
            self._reserved -= nbytes
            stored = StoredPage(namespace, name, nbytes)
            self._add(stored, candidate.stamp_ns)
            self._unrecorded.add(name.id)
            self._note_peak()
        return "present"

    def _place(
        self,
        page: Page,
        header: bytes,
        expected: int,
        candidate: Candidate,
        document: Mapping[str, object],
    ) -> WriteResult:
        """Make room and publish, in a few tries if the disk has no room after all."""
        # A disk that eviction did not help the last time is not emptied for nothing.
        with self._lock:
            tries = 1 if self._health.refuses_writes else NO_ROOM_TRIES
        wanted = expected
        while True:
            refusal = self._make_room(expected, candidate)
            if refusal is not None:
                return refusal
            try:
                self._publish(page, header, expected, candidate.stamp_ns, document)
                return "written"
            except OSError as error:
                if error.errno not in NO_ROOM or not tries:
                    raise
                victims = self._give_way(wanted, candidate)
                if not victims.pages:
                    if victims.outranked:
                        return "refused"
                    raise
            wanted, tries = 2 * wanted, tries - 1

    def _give_way(self, nbytes: int, candidate: Candidate) -> Victims:
        """Evict about `nbytes`, one page at least if one may leave, for a candidate that the disk
        had no room for: of bytes, of files or of a quota."""
        with self._lock:
            most = min(nbytes, self._contents.nbytes)
            victims = self._contents.victims(
                most, candidate, self._is_pinned, self._until(candidate)
            )
            evicted = self._evict(victims.pages)
            self._refused += victims.outranked and not victims.pages
        self._delete(evicted)
        return victims

    def _publish(
        self, page: Page, header: bytes, expected: int, time_ns: int, document: Mapping[str, object]
    ) -> None:
        """Write the file and index it; gives back the bytes `expected`, whatever happens."""
        name, namespace = name_of(page.meta), page.meta.namespace
        path = page_path(self.directory, namespace, name)
        try:
            temporary, nbytes = self._files.stage(path, [header, page.payload], document)
            with self._naming:
                self._files.publish(temporary, path, time_ns, nbytes)
                replaced = self._take(StoredPage(namespace, name, nbytes), time_ns, expected)
                expected = 0
            if replaced is not None:
                self._delete([replaced])
            self._files.sync(path)
        except BaseException:
            self.discard([name.id] if expected == 0 else [])
            self._files.tidy([os.path.dirname(path)])
            with self._lock:
                self._reserved -= expected
            raise
        with self._lock:
            self._health.end_write()

    def _take(self, stored: StoredPage, time_ns: int, expected: int) -> StoredPage | None:
        """Index a page that `expected` bytes were taken for; return the version it replaces."""
        page = stored.name.id
        again = self._once_written.find(page) is not None
        with self._lock:
            replaced = self._pop(page)
            self._reserved -= expected
            self._add(stored, time_ns)
            self._leaving.discard(page)
            self._written += stored.nbytes
            self._rewritten += stored.nbytes if again or replaced is not None else 0
            self._note_peak()
        return replaced

    def _add(self, stored: StoredPage, stamp_ns: int) -> None:
        # What is pinned has the time when that ends, in memory too: no request is as late.
        pinned = bool(self._pins) and self._pins.wants(stored.name.id, self._clock.now())
        self._contents.add(stored, max(stamp_ns, self._hold(stored)), used=not pinned)

    def _make_room(self, nbytes: int, candidate: Candidate) -> WriteResult | None:
        """Count `nbytes` as taken, evicting what must go; else a refusal, and nothing is taken."""
        self._deleter.retry()
        short, few = self._lacking(nbytes)
        with self._lock:
            over = self._used_bytes() + nbytes + DIRECTORY_SLACK_BYTES - self.limit_bytes
            lacking, until = max(over, short, few), self._until(candidate)
            victims = self._contents.victims(lacking, candidate, self._is_pinned, until)
            if victims.outranked:
                self._refused += 1
                # Free space comes and goes without this tier; its own budget does not.
                self._refused_rank = candidate.rank if over >= max(short, few) else None
                # What was too young to leave grows old.
                patience_ns, young_ns = self._contents.policy.patience_ns, victims.young_ns
                self._refused_until_ns = young_ns + patience_ns if young_ns else sys.maxsize
                self._contents.policy.wanted([candidate.page], candidate.stamp_ns)
                self._contents.policy.refused([candidate.page], candidate.stamp_ns)
                return "refused"
            if not victims.enough:
                self._health.fill_up()
                return "full"
            evicted = self._evict(victims.pages)
            self._reserved += nbytes
        self._delete(evicted)
        with self._lock:
            if self._used_bytes() + DIRECTORY_SLACK_BYTES > self.limit_bytes:
                # What was evicted could not be deleted, so its bytes are still there.
                self._reserved -= nbytes
                self._health.fill_up()
                return "full"
            self._note_peak()
        return None

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Let pages push out what was used a short while ago, for as long as the block lasts."""
        with self._lock:
            self._impatient += 1
            self._refused_rank = None
        try:
            yield
        finally:
            with self._lock:
                self._impatient -= 1

    def _until(self, candidate: Candidate) -> int:
        """Return the last stamp of pages that a candidate may push out."""
        if self._impatient:
            return sys.maxsize
        return max(self._clock.now(), candidate.stamp_ns) - self._contents.policy.patience_ns

    def _lacking(self, nbytes: int) -> tuple[int, int]:
        """Return how many bytes the disk lacks to keep its free space beside `nbytes` more, and 1
        if it lacks files; raises OSError for one mounted read-only, where nothing can leave."""
        directory = self.directory
        try:
            short = self._min_free + nbytes - self._fs.free_bytes(directory)
            spare = self._fs.spare_files(directory) if self._min_free else None
            read_only = self._fs.is_read_only(directory)
        except OSError:
            return 0, 0
        if read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(directory))
        return short, int(spare is not None and spare < 1)

    def _evict(self, pages: Iterable[PageId]) -> list[StoredPage]:
        leaving = [(page, self._contents.stamp(page)) for page in pages]
        self._left += leaving
        evicted = self._remove(page for page, _ in leaving)
        self._evicted += len(evicted)
        self._departures.note((page for page, _ in leaving), "disk")
        self._once_written.note((page for page, _ in leaving), "disk")
        return evicted

    def wanted_again(self, pages: Iterable[PageId]) -> None:
        """Note that pages are used: near the end of a day's ration they are written, and new ones
        are not."""
        if self._ration is not None:
            self._ration.used(pages)

    @property
    def rations(self) -> bool:
        """True for the rest of an hour in which a day's ration refused a page."""
        return self._ration is not None and self._ration.refuses

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
            loose = self._loose(chain)
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
        return self._pins.loose(pages, self._clock.now()) if self._pins else pages

    def hold(self, number: int, pages: Sequence[PageId], until_ns: int) -> Pinned:
        """Keep pages until a time, those that come later too, as far as the tier's share for that
        goes: root first. Not over a restart, which takes them for used then."""
        with self._lock:
            self._pins.add(number, pages, until_ns, self._clock.now())
            found = [s for page in pages if (s := self._contents.get(page)) is not None]
            nbytes = count = 0
            for stored in found:
                kept_ns = self._hold(stored)
                if kept_ns:
                    self._moved(self._contents.touch([stored.name.id], kept_ns), kept_ns)
                    count, nbytes = count + 1, nbytes + stored.cost
            return Pinned(len(found), count, nbytes)

    def let_loose(self, number: int) -> None:
        """End what `hold` began: the pages count as used now."""
        with self._lock:
            now = self._clock.now()
            for page, until_ns in self._pins.remove(number).items():
                stamp_ns = until_ns or now
                self._moved(self._contents.place([page], stamp_ns), stamp_ns)
            self._refused_rank = None

    def _hold(self, stored: StoredPage) -> int:
        """Return until when a page is pinned, 0 for one that is not."""
        if not self._pins:
            return 0
        now = self._clock.now()
        return self._pins.hold(stored.name.id, stored.cost, self.limit_bytes, now)

    def _is_pinned(self, page: PageId) -> bool:
        return bool(self._pins) and self._pins.holds(page, self._clock.now())

    def settle(self) -> None:
        """Record recency on the disk and evict down to the budget; notice a directory that was
        removed or replaced. Writer thread only; raises nothing."""
        try:
            self._load()
        except OSError:
            return
        with self._lock:
            pages, self._unrecorded = self._unrecorded, set()
            used = [
                (stored, self._contents.stamp(page))
                for page in pages
                if (stored := self._contents.stored(page)) is not None
            ]
        for stored, stamp_ns in used:
            with contextlib.suppress(OSError):
                self._fs.set_times(self._path(stored), stamp_ns)
        self._shrink()

    def _shrink(self) -> None:
        self._deleter.retry()
        with self._lock:
            over = self._used_bytes() - self.limit_bytes
            victims = self._contents.victims(over)
            evicted = self._evict(victims.pages if victims.enough else list(self._contents))
        self._delete(evicted)

    def usage(self) -> ColdUsage:
        day = None if self._ration is None else self._ration.usage()
        with self._lock:
            self._note_peak()
            return ColdUsage(
                pages=len(self._contents),
                nbytes=self._used_bytes(),
                peak_bytes=self._peak,
                limit_bytes=self.limit_bytes,
                evicted_pages=self._evicted,
                refused_pages=self._refused,
                corrupt_pages=self._corrupt,
                undecodable_pages=self._contents.undecodable,
                ignored_files=self._files.ignored,
                state=self._health.state,
                written_bytes=self._written,
                rewritten_bytes=self._rewritten,
                rationed_pages=0 if day is None else day.rationed_pages,
                day_written_bytes=0 if day is None else day.written_bytes,
                day_limit_bytes=0 if day is None else day.limit_bytes,
                patience_seconds=self._contents.policy.patience_ns / 1e9,
            )

    @property
    def refuses_writes(self) -> bool:
        """True from a failed write until the next one that succeeds."""
        with self._lock:
            return self._health.refuses_writes

    def check_integrity(self) -> None:
        """Assert that the byte counts, the index and the order agree, when no write is running."""
        self._deleter.check_integrity()
        with self._lock:
            assert self._reserved == 0
            self._contents.check_integrity()
            assert self._used_bytes() <= self.limit_bytes


def _blocks(nbytes: int) -> int:
    """Return what a file takes of a disk, as far as can be told before it is written."""
    return -(-nbytes // SMALL_FILE_BYTES) * SMALL_FILE_BYTES
