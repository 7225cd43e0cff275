"""The cold tier: one immutable safetensors file per page, under a budget of physical bytes."""

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.catalog import Found, namespace_directories, walk
from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageUnreadable
from omlx_cache_storage.fileio import Durability, FileSystem
from omlx_cache_storage.format import encode_header, payload_checksum
from omlx_cache_storage.index import PageIndex, Tail
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.names import (
    NAMESPACE_FILE,
    TEMPORARY_PREFIX,
    PageName,
    format_name,
    name_of,
    parent_hint,
    shard_of,
)
from omlx_cache_storage.page import Page, PageId, PageInfo
from omlx_cache_storage.reader import PageReader
from omlx_cache_storage.recency import ChainRecency

SMALL_FILE_BYTES = 4096
FILE_SLACK_BYTES = 64 * 1024
DEMOTED_NS = 1_000_000_000
"""The modification time of a superseded page: after a restart too it is the first to leave."""


class _Stored(NamedTuple):
    """A page file: its namespace, name parts and physical bytes."""

    namespace: BlockKey
    hint: bytes
    position: int
    held: int
    tail: bool
    nbytes: int

    def name(self, page: PageId) -> PageName:
        return PageName(page, self.hint, self.position, self.held, self.tail)


@dataclass(frozen=True, slots=True)
class ColdUsage:
    """Physical bytes and pages at one moment, and what went wrong so far."""

    pages: int
    nbytes: int
    peak_bytes: int
    limit_bytes: int
    evicted_pages: int
    corrupt_pages: int
    state: str


class ColdTier:
    """Holds page files; physical bytes, temporary files and directories included, stay under
    `limit_bytes`.

    Mutable: every field below `_lock`, which guards them; no I/O under it. Any thread may read;
    `write` and `settle` belong to one writer thread.
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        *,
        min_free_bytes: int = 0,
        durability: Durability = "none",
        fs: FileSystem | None = None,
    ) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._min_free = min_free_bytes
        self._durability: Durability = durability
        self._fs = fs or FileSystem()
        self._sequence = itertools.count()
        self._lock = threading.Lock()
        self._index: PageIndex[_Stored] = PageIndex()
        self._order = ChainRecency()
        self._made: set[Path] = set()
        self._times: dict[PageId, int] = {}
        self._bytes = 0
        self._overhead = 0
        self._peak = 0
        self._evicted = 0
        self._corrupt = 0
        self._state = "ok"

    def open(self) -> None:
        """Make the directory, delete leftovers of dead writers, and index what is there.

        A disk that refuses leaves an empty tier whose state says why; nothing raises.
        """
        try:
            self._fs.make_directory(self.directory)
            pages, temporaries = self._inventory()
        except OSError as error:
            self._state = f"unavailable: {error.strerror or error}"
            return
        for found in temporaries:
            if _writer_is_gone(found.path.name):
                with contextlib.suppress(OSError):
                    self._fs.remove(found.path)
        pages.sort(key=lambda f: (f[0].mtime_ns, -f[1].position))
        for found, name in pages:
            stored = _Stored(
                found.namespace, name.parent_hint, name.position, name.held, name.tail, found.nbytes
            )
            self._adopt(name.id, stored)
        self.settle()

    def _inventory(self) -> tuple[list[tuple[Found, PageName]], list[Found]]:
        self._note(self.directory)
        pages: list[tuple[Found, PageName]] = []
        temporaries: list[Found] = []
        for found in walk(self.directory, self._fs):
            self._note(found.path.parent)
            if found.name is None:
                temporaries.append(found)
            else:
                pages.append((found, found.name))
        for _digest, directory in namespace_directories(self.directory, self._fs):
            self._note(directory)
            self._note(directory / NAMESPACE_FILE)
        return pages, temporaries

    def _note(self, path: Path) -> None:
        """Count a directory or document once; each takes one file-system block."""
        if path not in self._made:
            self._made.add(path)
            self._overhead += SMALL_FILE_BYTES

    def _adopt(self, page: PageId, stored: _Stored) -> None:
        old = self._index.get(page)
        if old is not None:
            self._bytes -= old.nbytes
        self._index.put(page, stored)
        self._order.add(page)
        self._bytes += stored.nbytes
        self._peak = max(self._peak, self._bytes + self._overhead)

    def info(self, page: PageId) -> PageInfo | None:
        with self._lock:
            stored = self._index.get(page)
            if stored is None:
                return None
            return PageInfo(stored.position, stored.held, stored.nbytes, "cold")

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
        path = self._path(page, stored)
        try:
            fd = self._fs.open(path)
            try:
                reader = PageReader(self._fs, fd, path)
                if reader.meta.id != page or reader.meta.namespace != stored.namespace:
                    raise ForeignPage(f"{path.name} holds another page than its name says")
                yield reader
            finally:
                self._fs.close(fd)
        except FileNotFoundError as error:
            with self._lock:
                self._pop(page)
            raise PageUnreadable(f"{path.name} is gone") from error
        except OSError as error:
            with self._lock:
                self._state = f"failing: {error.strerror or error}"
            raise PageUnreadable(f"{path.name}: {error}") from error
        except (CorruptPage, ForeignPage):
            with self._lock:
                self._corrupt += 1
            self.discard([page])
            raise

    def write(self, page: Page, time_ns: int, document: Mapping[str, object]) -> bool:
        """Publish a page whole or not at all; False when there is no room for it.

        Raises OSError when the disk refuses; nothing is left behind then. Writer thread only.
        """
        meta = page.meta
        stored = self.info(meta.id)
        if stored is not None and stored.held >= meta.held:
            return True
        header = encode_header(meta, payload_checksum([page.payload]))
        expected = len(header) + meta.nbytes + FILE_SLACK_BYTES
        if not self._make_room(expected):
            return False
        try:
            nbytes = self._write_file(page, header, time_ns, document)
        except OSError as error:
            with self._lock:
                self._bytes -= expected
                self._state = f"failing: {error.strerror or error}"
            raise
        hint = parent_hint(meta.parent)
        new = _Stored(meta.namespace, hint, meta.position, meta.held, meta.tail, nbytes)
        with self._lock:
            old = self._index.get(meta.id)
            self._bytes -= expected
            self._adopt(meta.id, new)
            self._state = "ok"
        if old is not None and old.held != meta.held:
            self._unlink([self._path(meta.id, old)])
        return True

    def _write_file(
        self, page: Page, header: bytes, time_ns: int, document: Mapping[str, object]
    ) -> int:
        shard = self._shard(page.meta.namespace, page.meta.key)
        self._prepare(shard, document)
        temporary = self._temporary(shard)
        try:
            nbytes = self._fs.write(temporary, [header, page.payload], self._durability)
            self._fs.set_times(temporary, time_ns)
            self._fs.publish(temporary, shard / format_name(name_of(page.meta)), self._durability)
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.remove(temporary)
            raise
        return nbytes

    def _temporary(self, directory: Path) -> Path:
        return directory / f"{TEMPORARY_PREFIX}{os.getpid()}-{next(self._sequence)}"

    def _prepare(self, shard: Path, document: Mapping[str, object]) -> None:
        """Make the namespace's directory, its document and the shard, when they are missing."""
        if shard in self._made and shard.is_dir():
            return
        directory = shard.parent
        self._fs.make_directory(self.directory)
        self._fs.make_directory(directory)
        described = directory / NAMESPACE_FILE
        if not described.exists():
            text = json.dumps(document, indent=2, sort_keys=True) + "\n"
            temporary = self._temporary(directory)
            self._fs.write(temporary, [text.encode()], self._durability)
            self._fs.publish(temporary, described, self._durability)
        self._fs.make_directory(shard)
        with self._lock:
            for path in (directory, described, shard):
                self._note(path)

    def _make_room(self, nbytes: int) -> bool:
        """Count `nbytes` as taken, evicting what must go; False, and nothing taken, otherwise."""
        try:
            short = self._min_free + nbytes - self._fs.free_bytes(self.directory)
        except OSError:
            short = 0
        with self._lock:
            over = self._bytes + self._overhead + nbytes - self.limit_bytes
            victims = self._victims(max(over, short))
            if victims is None:
                self._state = "full"
                return False
            self._evicted += len(victims)
            paths = [self._pop(page) for page in victims]
            self._bytes += nbytes
            self._peak = max(self._peak, self._bytes + self._overhead)
        self._unlink(paths)
        return True

    def _victims(self, excess: int) -> list[PageId] | None:
        victims: list[PageId] = []
        for page in self._order:
            if excess <= 0:
                break
            stored = self._index.get(page)
            if stored is not None:
                victims.append(page)
                excess -= stored.nbytes
        return victims if excess <= 0 else None

    def touch(self, chain: Sequence[PageId]) -> None:
        """Mark the pages of a chain, root first, as used now. `settle` records it on the disk."""
        now = time.time_ns()
        with self._lock:
            self._order.touch(chain)
            for page in chain:
                if page in self._index:
                    self._times[page] = now

    def demote(self, pages: Iterable[PageId]) -> None:
        """Make pages the first to be evicted, after a restart too."""
        with self._lock:
            pages = [page for page in pages if page in self._index]
            self._order.demote(pages)
            self._times.update(dict.fromkeys(pages, DEMOTED_NS))

    def settle(self) -> None:
        """Record recency on the disk and evict down to the budget. Writer thread only."""
        with self._lock:
            times, self._times = self._times, {}
            paths = [
                (self._path(page, stored), time_ns)
                for page, time_ns in times.items()
                if (stored := self._index.get(page)) is not None
            ]
            victims = self._victims(self._bytes + self._overhead - self.limit_bytes)
            doomed = [self._pop(p) for p in (list(self._order) if victims is None else victims)]
            self._evicted += len(doomed)
        for path, time_ns in paths:
            with contextlib.suppress(OSError):
                self._fs.set_times(path, time_ns)
        self._unlink(doomed)

    def discard(self, pages: Iterable[PageId]) -> int:
        """Delete pages; return how many there were."""
        with self._lock:
            paths = [self._pop(page) for page in list(pages) if page in self._index]
        self._unlink(paths)
        return len(paths)

    def clear(self, namespace: BlockKey) -> int:
        """Delete a namespace's pages; return how many there were."""
        with self._lock:
            doomed = [p for p, stored in self._index.items() if stored.namespace == namespace]
        return self.discard(doomed)

    def tails(self, parent: BlockKey) -> set[Tail]:
        with self._lock:
            return self._index.tails(parent)

    def entries(self) -> list[tuple[PageId, BlockKey, PageInfo, Path]]:
        """Return every page with its namespace and path, the first to be evicted first."""
        with self._lock:
            found = []
            for page in self._order:
                stored = self._index.get(page)
                if stored is not None:
                    info = PageInfo(stored.position, stored.held, stored.nbytes, "cold")
                    found.append((page, stored.namespace, info, self._path(page, stored)))
            return found

    def usage(self) -> ColdUsage:
        with self._lock:
            return ColdUsage(
                len(self._index),
                self._bytes + self._overhead,
                self._peak,
                self.limit_bytes,
                self._evicted,
                self._corrupt,
                self._state,
            )

    def check_integrity(self) -> None:
        """Assert that the byte count, the index and the order agree, when no write is running."""
        with self._lock:
            entries = dict(self._index.items())
            assert self._bytes == sum(e.nbytes for e in entries.values())
            assert set(self._order) == set(entries)
            assert self._bytes + self._overhead <= self.limit_bytes

    def _pop(self, page: PageId) -> Path | None:
        stored = self._index.pop(page)
        if stored is None:
            return None
        self._order.discard(page)
        self._times.pop(page, None)
        self._bytes -= stored.nbytes
        return self._path(page, stored)

    def _unlink(self, paths: Iterable[Path | None]) -> None:
        for path in paths:
            if path is not None:
                with contextlib.suppress(OSError):
                    self._fs.remove(path)

    def _shard(self, namespace: BlockKey, key: BlockKey) -> Path:
        return self.directory / namespace.hex() / shard_of(key)

    def _path(self, page: PageId, stored: _Stored) -> Path:
        return self._shard(stored.namespace, page.key) / format_name(stored.name(page))


def _writer_is_gone(temporary_name: str) -> bool:
    """True when the process that a temporary file is named after is this one or does not run."""
    try:
        pid = int(temporary_name.removeprefix(TEMPORARY_PREFIX).split("-", 1)[0])
    except ValueError:
        return True
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
