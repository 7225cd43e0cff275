"""The cold tier: one immutable safetensors file per page, under a budget of physical bytes."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.reader import PageReader
from omlx_cache_storage.cold.records import ColdEntry, Doomed, StoredPage
from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageUnreadable
from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.names import name_of
from omlx_cache_storage.index import PageIndex, Tail
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageInfo
from omlx_cache_storage.recency import ChainRecency, Clock
from omlx_cache_storage.stats import ColdUsage

FILE_SLACK_BYTES = 16 * 1024
"""More than a file takes beside header and payload: its last block, and its name."""
DIRECTORY_SLACK_BYTES = 48 * 1024
"""More than the directories and the document take that a write may make on its way."""


class ColdTier:
    """Holds page files; physical bytes, temporary files and directories included, stay under
    `limit_bytes`.

    Mutable: every field below `_lock`, which guards them; no I/O under it. `_naming` keeps a
    deletion and a publication of one name apart. Any thread may read and discard; `open`,
    `write` and `settle` belong to one thread at a time.
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
        self._lock = threading.Lock()
        self._index: PageIndex[StoredPage] = PageIndex()
        self._order = ChainRecency()
        self._unrecorded: set[PageId] = set()
        self._stuck: dict[Path, Doomed] = {}
        self._lost: list[PageId] = []
        self._bytes = 0
        self._peak = 0
        self._evicted = 0
        self._corrupt = 0
        self._write_trouble = ""
        self._read_trouble = ""

    def open(self, budget: Callable[[int], int] | None = None) -> None:
        """Make the directory, delete leftovers of dead writers, index what is there, and evict
        down to the budget, which `budget` may derive from the bytes found.

        A disk that refuses leaves an empty tier whose state says why, and is asked again by
        `write` and `settle`; nothing raises.
        """
        with contextlib.suppress(OSError):
            self._load()
        if budget is not None:
            self.limit_bytes = budget(self.usage().nbytes)
        self._shrink()
        with self._lock:
            self._peak = self._bytes + self._files.overhead_bytes

    def _load(self) -> None:
        """Index the directory if it is not the one that was indexed; raises OSError."""
        try:
            if self._files.is_ours():
                return
            files = self._files.inventory()
        except OSError as error:
            with self._lock:
                self._write_trouble = f"unavailable: {error.strerror or error}"
            raise
        now = time.time_ns()
        times = ((f.name.id, f.name.position, min(f.mtime_ns, now)) for f in files if f.name)
        with self._lock:
            before = set(self._index)
            self._index, self._order = PageIndex(), ChainRecency()
            self._stuck.clear()
            pages = [StoredPage(f.namespace, f.name, f.nbytes) for f in files if f.name]
            for page in pages:
                self._index.put(page.name.id, page)
            self._order.fill(times)
            self._bytes = sum(page.cost for page in pages)
            self._peak = max(self._peak, self._bytes + self._files.overhead_bytes)
            self._lost += before - set(self._index)
            self._unrecorded &= set(self._index)
            self._write_trouble = ""

    def _adopt(self, stored: StoredPage, stamp_ns: int) -> None:
        """Index a page that is not in the index."""
        self._index.put(stored.name.id, stored)
        self._order.add(stored.name.id, stored.position, stamp_ns)
        self._bytes += stored.cost
        self._peak = max(self._peak, self._bytes + self._files.overhead_bytes)

    def info(self, page: PageId) -> PageInfo | None:
        with self._lock:
            stored = self._index.get(page)
            return None if stored is None else stored.info

    def __contains__(self, page: PageId) -> bool:
        with self._lock:
            return page in self._index

    @contextlib.contextmanager
    def reading(self, page: PageId) -> Iterator[PageReader]:
        """Open a page; raises PageError, and forgets a page that is missing or wrong.

        Blocks on the disk. A page evicted meanwhile stays readable until the block ends.
        """
        with self._lock:
            stored = self._index.get(page)
        if stored is None:
            raise PageUnreadable("the page is no longer on the disk")
        path = self._path(stored)
        try:
            fd = self._fs.open(path)
            try:
                reader = PageReader(self._fs, fd, path)
                if (reader.meta.namespace, name_of(reader.meta)) != stored[:2]:
                    raise ForeignPage(f"{path.name} holds another page than its name says")
                yield reader
            finally:
                self._fs.close(fd)
            with self._lock:
                self._read_trouble = ""
        except FileNotFoundError as error:
            with self._lock:
                self._pop(page)
            raise PageUnreadable(f"{path.name} is gone") from error
        except OSError as error:
            with self._lock:
                self._read_trouble = f"failing: {error.strerror or error}"
            raise PageUnreadable(f"{path.name}: {error}") from error
        except (CorruptPage, ForeignPage):
            with self._lock:
                self._corrupt += 1
            self.discard([page])
            raise

    def write(self, page: Page, time_ns: int, document: Mapping[str, object]) -> bool:
        """Publish a page whole or not at all; False when there is no room for it.

        Raises OSError when the disk refuses, and ValueError for a payload of another size than
        the page's tensors; nothing is left behind then. Writer thread only.
        """
        self._load()
        old = self.info(page.meta.id)
        if old is not None and old.held >= page.meta.held:
            return True
        if self._encode is not None:
            page = self._encode(page)
        meta = page.meta
        size = memoryview(page.payload).nbytes
        if size != meta.nbytes:
            raise ValueError(f"a payload of {size} bytes for tensors of {meta.nbytes}")
        header = encode_header(meta, payload_checksum([page.payload]))
        expected = len(header) + meta.nbytes + FILE_SLACK_BYTES
        if not self._make_room(expected):
            return False
        self._publish(page, header, expected, time_ns, document)
        return True

    def _publish(
        self, page: Page, header: bytes, expected: int, time_ns: int, document: Mapping[str, object]
    ) -> None:
        """Write the file and index it; gives back the bytes `expected`, whatever happens."""
        name, namespace = name_of(page.meta), page.meta.namespace
        path = self._files.path(namespace, name)
        try:
            temporary, nbytes = self._files.stage(path, [header, page.payload], document)
            with self._naming:
                self._files.publish(temporary, path, time_ns)
                with self._lock:
                    replaced = self._pop(name.id)
                    self._bytes -= expected
                    expected = 0
                    self._adopt(StoredPage(namespace, name, nbytes), time_ns)
            if replaced is not None and replaced.path != path:
                self._delete([replaced])
            self._files.sync(path)
        except BaseException as error:
            self.discard([name.id] if expected == 0 else [])
            self._files.tidy([path.parent])
            with self._lock:
                self._bytes -= expected
                if isinstance(error, OSError):
                    self._write_trouble = f"failing: {error.strerror or error}"
            raise
        with self._lock:
            self._write_trouble = ""

    def _make_room(self, nbytes: int) -> bool:
        """Count `nbytes` as taken, evicting what must go; False, and nothing taken, otherwise."""
        self._retry_stuck()
        try:
            short = self._min_free + nbytes - self._fs.free_bytes(self.directory)
        except OSError:
            short = 0
        with self._lock:
            wanted = self._bytes + self._files.overhead_bytes + nbytes + DIRECTORY_SLACK_BYTES
            victims = self._victims(max(wanted - self.limit_bytes, short))
            if victims is None:
                self._write_trouble = "full"
                return False
            doomed = self._evict(victims)
            self._bytes += nbytes
        self._delete(doomed)
        with self._lock:
            used = self._bytes + self._files.overhead_bytes
            if used + DIRECTORY_SLACK_BYTES > self.limit_bytes:
                # What was evicted could not be deleted, so its bytes are still there.
                self._bytes -= nbytes
                self._write_trouble = "full"
                return False
            self._peak = max(self._peak, used)
        return True

    def _victims(self, excess: int) -> list[PageId] | None:
        victims: list[PageId] = []
        if excess <= 0:
            return victims

        def take(page: PageId) -> bool:
            nonlocal excess
            stored = self._index.get(page)
            if stored is not None:
                victims.append(page)
                excess -= stored.cost
            return excess > 0

        if excess <= self._bytes:
            self._order.visit(take)
        return victims if excess <= 0 else None

    def _evict(self, pages: Iterable[PageId]) -> list[Doomed]:
        doomed = [d for page in pages if (d := self._pop(page)) is not None]
        self._evicted += len(doomed)
        return doomed

    def touch(self, chain: Iterable[PageId], stamp_ns: int | None = None) -> None:
        """Mark pages as used at a stamp of the clock, now by default.

        The disk learns it from `settle`.
        """
        with self._lock:
            stamp_ns = self._clock.now() if stamp_ns is None else stamp_ns
            self._unrecorded.update(self._order.touch(chain, stamp_ns))

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
            times = [
                (self._path(stored), self._order.stamp(page))
                for page in pages
                if (stored := self._index.get(page)) is not None
            ]
        for path, stamp_ns in times:
            with contextlib.suppress(OSError):
                self._fs.set_times(path, stamp_ns)
        self._shrink()

    def _shrink(self) -> None:
        self._retry_stuck()
        with self._lock:
            over = self._bytes + self._files.overhead_bytes - self.limit_bytes
            victims = self._victims(over)
            doomed = self._evict(self._order.ordered() if victims is None else victims)
        self._delete(doomed)

    def take_lost(self) -> list[PageId]:
        """Return, once, the pages that went with a directory that was removed or replaced."""
        with self._lock:
            lost, self._lost = self._lost, []
            return lost

    def discard(self, pages: Iterable[PageId]) -> int:
        """Delete pages; return how many there were."""
        with self._lock:
            doomed = [d for page in pages if (d := self._pop(page)) is not None]
        self._delete(doomed)
        return len(doomed)

    def tails(self, parent: BlockKey) -> set[Tail]:
        with self._lock:
            return self._index.tails(parent)

    def entries(self) -> list[ColdEntry]:
        """Return every page, the first to be evicted first."""
        with self._lock:
            found = []
            for page in self._order.ordered():
                stored = self._index.get(page)
                if stored is not None:
                    path, stamp = self._path(stored), self._order.stamp(page)
                    found.append(ColdEntry(page, stored.namespace, stored.info, path, stamp))
            return found

    def usage(self) -> ColdUsage:
        with self._lock:
            used = self._bytes + self._files.overhead_bytes
            self._peak = max(self._peak, used)
            return ColdUsage(
                len(self._index),
                used,
                self._peak,
                self.limit_bytes,
                self._evicted,
                self._corrupt,
                self._write_trouble or self._read_trouble or "ok",
            )

    @property
    def refuses_writes(self) -> bool:
        """True from a failed write until the next one that succeeds."""
        with self._lock:
            return bool(self._write_trouble)

    def check_integrity(self) -> None:
        """Assert that the byte count, the index and the order agree, when no write is running."""
        with self._lock:
            entries = dict(self._index.items())
            stuck = sum(doomed.cost for doomed in self._stuck.values())
            assert self._bytes == stuck + sum(e.cost for e in entries.values())
            assert set(self._order.ordered()) == set(entries)
            assert self._bytes + self._files.overhead_bytes <= self.limit_bytes

    def _pop(self, page: PageId) -> Doomed | None:
        stored = self._index.pop(page)
        if stored is None:
            return None
        self._order.discard(page)
        self._unrecorded.discard(page)
        self._bytes -= stored.cost
        return Doomed(page, self._path(stored), stored.cost)

    def _path(self, stored: StoredPage) -> Path:
        return self._files.path(stored.namespace, stored.name)

    def _delete(self, doomed: Iterable[Doomed]) -> None:
        """Delete files. One that the disk will not delete keeps its bytes and is tried again."""
        shards = set()
        for file in doomed:
            with self._naming:
                if self._is_back(file):
                    continue
                try:
                    self._fs.remove(file.path)
                    shards.add(file.path.parent)
                except OSError:
                    with self._lock:
                        self._bytes += file.cost
                        self._stuck[file.path] = file
        self._files.tidy(shards)

    def _is_back(self, file: Doomed) -> bool:
        """True when a page was published again under the name that was to be deleted."""
        with self._lock:
            stored = self._index.get(file.page)
            return stored is not None and self._path(stored) == file.path

    def _retry_stuck(self) -> None:
        with self._lock:
            stuck = list(self._stuck.values())
            self._stuck.clear()
            self._bytes -= sum(file.cost for file in stuck)
        if stuck:
            self._delete(stuck)
