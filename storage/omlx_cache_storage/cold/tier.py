"""The cold tier: one immutable safetensors file per page, under a budget of physical bytes."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from omlx_cache_storage.cold.contents import Candidate, Contents
from omlx_cache_storage.cold.deletion import Deleter
from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.reader import PageReader, open_page
from omlx_cache_storage.cold.records import ColdEntry, PendingDeletion, StoredPage
from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageUnreadable, UndecodablePage
from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.names import name_of, page_path
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageInfo, Tail
from omlx_cache_storage.recency import Clock
from omlx_cache_storage.stats import ColdUsage
from omlx_cache_storage.tier import WriteResult

FILE_SLACK_BYTES = 16 * 1024
"""More than a file takes beside header and payload: its last block, and its name."""
DIRECTORY_SLACK_BYTES = 48 * 1024
"""More than the directories take that a write may make on its way."""


class ColdTier:
    """Holds page files; physical bytes, temporary files and directories included, stay under
    `limit_bytes`.

    `_lock` guards `limit_bytes`, `_contents`, `_reserved`, `_unrecorded`, `_missing`, `_left`
    (evicted pages that nobody took note of), `_refused_rank`, the counts `_peak`, `_evicted`,
    `_refused` and `_corrupt`, and the texts
    `_write_error` and `_read_error`; no I/O, sorting or making of paths under it. `_naming`
    keeps a deletion and a publication of one name apart and is taken before `_lock`. Any thread
    may read and discard; `open`, `write` and `settle` belong to one thread at a time.
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
    ) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._min_free = min_free_bytes
        self._encode = encode
        self._fs = fs or FileSystem()
        self._files = PageFiles(directory, self._fs, durability)
        self._clock = clock or Clock()
        self._naming = threading.Lock()
        self._deleter = Deleter(self._fs, self._files.tidy, self._naming, self._is_published_again)
        self._lock = threading.Lock()
        self._contents = Contents()
        self._reserved = 0
        self._unrecorded: set[PageId] = set()
        self._missing: list[PageId] = []
        self._left: list[tuple[PageId, int]] = []
        # Pages worth less than the last one that was refused are refused unseen: a smaller one
        # would fill the gap behind a page that its chain lacks.
        self._refused_rank: tuple[int, int] | None = None
        self._peak = 0
        self._evicted = 0
        self._refused = 0
        self._corrupt = 0
        self._write_error = ""
        self._read_error = ""

    def open(self, budget: Callable[[int], int] | None = None) -> None:
        """Make the directory, delete leftovers of dead writers, index what is there, and evict
        down to the budget, which `budget` may derive from the bytes found.

        A disk that refuses leaves an empty tier whose state says why, and is asked again by
        `write` and `settle`; nothing raises.
        """
        with contextlib.suppress(OSError):
            self._load()
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
                return
            files = self._files.inventory()
        except OSError as error:
            with self._lock:
                self._write_error = f"unavailable: {error.strerror or error}"
            raise
        now = time.time_ns()
        contents = Contents()
        contents.fill(
            (StoredPage(f.namespace, f.name, f.nbytes), min(f.mtime_ns, now))
            for f in files
            if f.name
        )
        with self._lock:
            before, self._contents = self._contents.pages(), contents
            self._deleter.forget()
            self._refused_rank = None
            self._missing += before - contents.pages()
            self._unrecorded &= contents.pages()
            self._write_error = ""
            self._note_peak()

    def _used_bytes(self) -> int:
        held = self._contents.nbytes + self._reserved + self._deleter.nbytes
        return held + self._files.overhead_bytes

    def _note_peak(self) -> None:
        self._peak = max(self._peak, self._used_bytes())

    def info(self, page: PageId) -> PageInfo | None:
        """Return what is known of a page; None for one that this process cannot decode, too."""
        with self._lock:
            stored = self._contents.get(page)
        return None if stored is None else stored.info

    def __contains__(self, page: PageId) -> bool:
        with self._lock:
            return self._contents.get(page) is not None

    @contextlib.contextmanager
    def reading(self, page: PageId) -> Iterator[PageReader]:
        """Open a page; raises PageError, and forgets a page that is missing or wrong.

        One that cannot be decoded here stays on the disk and is not opened again. Blocks on the
        disk. A page evicted meanwhile stays readable until the block ends.
        """
        with self._lock:
            stored = self._contents.get(page)
            undecodable = self._contents.is_undecodable(page)
        if undecodable:
            raise UndecodablePage("the page was found to be undecodable here")
        if stored is None:
            raise PageUnreadable("the page is no longer on the disk")
        path = self._path(stored)
        try:
            with open_page(self._fs, path, stored.namespace, stored.name) as reader:
                yield reader
            with self._lock:
                self._read_error = ""
        except FileNotFoundError as error:
            with self._lock:
                self._pop(page)
            raise PageUnreadable(f"{os.path.basename(path)} is gone") from error
        except OSError as error:
            with self._lock:
                self._read_error = f"failing: {error.strerror or error}"
            raise PageUnreadable(f"{os.path.basename(path)}: {error}") from error
        except UndecodablePage:
            self.quarantine(page)
            raise
        except (CorruptPage, ForeignPage):
            with self._lock:
                self._corrupt += 1
            self.discard([page])
            raise

    def quarantine(self, page: PageId) -> None:
        """Keep a page that this process cannot decode out of its look-ups; its file stays."""
        with self._lock:
            self._contents.quarantine(page)

    def write(self, page: Page, time_ns: int, document: Mapping[str, object]) -> WriteResult:
        """Publish a page whole or not at all, and say what was done.

        Evicts only pages that leave before this one: never its chain's root for its deep end.
        Raises OSError when the disk refuses, and ValueError for a payload of another size than
        the page's tensors; nothing is left behind then. Writer thread only.
        """
        self._load()
        candidate = Candidate(page.meta.id, page.meta.position, time_ns)
        with self._lock:
            old = self._contents.get(candidate.page)
            if old is not None and old.held >= page.meta.held:
                return "present"
            if self._refused_rank is not None and candidate.rank < self._refused_rank:
                self._refused += 1
                return "refused"
        if self._encode is not None:
            page = self._encode(page)
        meta = page.meta
        size = memoryview(page.payload).nbytes
        if size != meta.nbytes:
            raise ValueError(f"a payload of {size} bytes for tensors of {meta.nbytes}")
        header = encode_header(meta, payload_checksum([page.payload]))
        expected = len(header) + meta.nbytes + FILE_SLACK_BYTES
        expected += self._files.document_bytes(meta.namespace, document)
        refusal = self._make_room(expected, candidate)
        if refusal is not None:
            return refusal
        self._publish(page, header, expected, time_ns, document)
        return "written"

    def _publish(
        self, page: Page, header: bytes, expected: int, time_ns: int, document: Mapping[str, object]
    ) -> None:
        """Write the file and index it; gives back the bytes `expected`, whatever happens."""
        name, namespace = name_of(page.meta), page.meta.namespace
        path = page_path(self.directory, namespace, name)
        try:
            temporary, nbytes = self._files.stage(path, [header, page.payload], document)
            with self._naming:
                self._files.publish(temporary, path, time_ns)
                with self._lock:
                    replaced = self._pop(name.id)
                    self._reserved -= expected
                    expected = 0
                    self._contents.add(StoredPage(namespace, name, nbytes), time_ns)
                    self._note_peak()
            if replaced is not None:
                self._delete([replaced])
            self._files.sync(path)
        except BaseException as error:
            self.discard([name.id] if expected == 0 else [])
            self._files.tidy([os.path.dirname(path)])
            with self._lock:
                self._reserved -= expected
                if isinstance(error, OSError):
                    self._write_error = f"failing: {error.strerror or error}"
            raise
        with self._lock:
            self._write_error = ""

    def _make_room(self, nbytes: int, candidate: Candidate) -> WriteResult | None:
        """Count `nbytes` as taken, evicting what must go; else a refusal, and nothing is taken."""
        self._deleter.retry()
        try:
            short = self._min_free + nbytes - self._fs.free_bytes(self.directory)
        except OSError:
            short = 0
        with self._lock:
            over = self._used_bytes() + nbytes + DIRECTORY_SLACK_BYTES - self.limit_bytes
            victims = self._contents.victims(max(over, short), candidate)
            if victims.outranked:
                self._refused += 1
                # Free space comes and goes without this tier; its own budget does not.
                self._refused_rank = candidate.rank if over >= short else None
                return "refused"
            if not victims.enough:
                self._write_error = "full"
                return "full"
            evicted = self._evict(victims.pages)
            self._reserved += nbytes
        self._delete(evicted)
        with self._lock:
            if self._used_bytes() + DIRECTORY_SLACK_BYTES > self.limit_bytes:
                # What was evicted could not be deleted, so its bytes are still there.
                self._reserved -= nbytes
                self._write_error = "full"
                return "full"
            self._note_peak()
        return None

    def _evict(self, pages: Iterable[PageId]) -> list[StoredPage]:
        leaving = [(page, self._contents.stamp(page)) for page in pages]
        self._left += leaving
        evicted = self._remove(page for page, _ in leaving)
        self._evicted += len(evicted)
        return evicted

    def touch(self, chain: Iterable[PageId], stamp_ns: int | None = None) -> None:
        """Mark pages as used at a stamp of the clock, now by default.

        The disk learns it from `settle`.
        """
        with self._lock:
            stamp_ns = self._clock.now() if stamp_ns is None else stamp_ns
            self._unrecorded.update(self._contents.touch(chain, stamp_ns))
            if self._refused_rank is not None and stamp_ns < self._refused_rank[0]:
                self._refused_rank = None

    def demote(self, pages: Iterable[PageId], stamp_ns: int | None = None) -> None:
        """Make pages the first to be evicted, the deepest of them first, after a restart too."""
        self.touch(pages, self._clock.superseded() if stamp_ns is None else stamp_ns)

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
            evicted = self._evict(victims.pages if victims.enough else self._contents.pages())
        self._delete(evicted)

    def take_missing(self) -> list[PageId]:
        """Return, once, the pages that went with a directory that was removed or replaced."""
        with self._lock:
            missing, self._missing = self._missing, []
            return missing

    def take_evicted(self) -> list[tuple[PageId, int]]:
        """Return, once, the pages that were evicted since the last call, and their stamps then."""
        with self._lock:
            left, self._left = self._left, []
            return left

    def discard(self, pages: Iterable[PageId]) -> int:
        """Delete pages; return how many there were."""
        with self._lock:
            removed = self._remove(pages)
        self._delete(removed)
        return len(removed)

    def tails(self, parent: BlockKey) -> set[Tail]:
        with self._lock:
            return self._contents.tails(parent)

    def entries(self) -> list[ColdEntry]:
        """Return every page, the first to be evicted first."""
        return sorted(self.listing(), key=lambda e: (e.used_ns, -e.stored.position, e.page))

    def listing(self) -> list[ColdEntry]:
        """Return every page, in no order: nothing is sorted for it."""
        with self._lock:
            snapshot = self._contents.snapshot()
        stored = dict(snapshot.stored)
        return [ColdEntry(self.directory, stored[p.page], p.stamp_ns) for p in snapshot.places]

    def usage(self) -> ColdUsage:
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
                state=self._write_error or self._read_error or "ok",
            )

    @property
    def refuses_writes(self) -> bool:
        """True from a failed write until the next one that succeeds."""
        with self._lock:
            return bool(self._write_error)

    def check_integrity(self) -> None:
        """Assert that the byte counts, the index and the order agree, when no write is running."""
        self._deleter.check_integrity()
        with self._lock:
            pages = dict(self._contents.snapshot().stored)
            assert self._reserved == 0
            assert self._contents.nbytes == sum(stored.cost for stored in pages.values())
            assert {place.page for place in self._contents.snapshot().places} == set(pages)
            assert self._used_bytes() <= self.limit_bytes

    def _remove(self, pages: Iterable[PageId]) -> list[StoredPage]:
        return [stored for page in pages if (stored := self._pop(page)) is not None]

    def _pop(self, page: PageId) -> StoredPage | None:
        self._unrecorded.discard(page)
        stored = self._contents.pop(page)
        if stored is not None:
            self._refused_rank = None
        return stored

    def _path(self, stored: StoredPage) -> str:
        return page_path(self.directory, stored.namespace, stored.name)

    def _delete(self, removed: Iterable[StoredPage]) -> None:
        """Delete the files of pages that have left the index."""
        files = [PendingDeletion(s.name.id, self._path(s), s.cost) for s in removed]
        self._deleter.delete(files)

    def _is_published_again(self, file: PendingDeletion) -> bool:
        """True when a page has the name that was to be deleted."""
        with self._lock:
            stored = self._contents.stored(file.page)
        return stored is not None and self._path(stored) == file.path
