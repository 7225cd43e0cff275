"""The files and directories of a cold tier: placing, publishing, deleting; no index, no budget."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from omlx_cache_storage.cold.catalog import (
    Found,
    namespace_directories,
    shard_directories,
    walk,
)
from omlx_cache_storage.cold.disk import Durability, FileSystem, physical_bytes
from omlx_cache_storage.cold.document import MAX_DOCUMENT_BYTES, encode_document
from omlx_cache_storage.cold.records import ENTRY_BYTES, SMALL_FILE_BYTES
from omlx_cache_storage.cold.temporary import TemporaryNames, remove_leftovers
from omlx_cache_storage.format.names import NAMESPACE_FILE, RATE_FILE, REUSE_FILE, PageName
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Buffer

TAG_FILE = "CACHEDIR.TAG"
TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This directory holds a cache of omlx-cache: what is in it can be computed again.
# For what this file is for, see https://bford.info/cachedir/
"""


_DESCRIPTIONS = (NAMESPACE_FILE, RATE_FILE)
"""What a namespace's directory holds beside pages: it goes with the last of them."""


Take = Callable[[Found, PageName], str | None]
"""Takes a page file with what its name says, and returns the path of a file that is of no use
because of another one, None if there is none."""


def _take(found: Found, name: PageName) -> str | None:
    """Have a use for every file."""
    return None


class PageFiles:
    """Knows where pages lie under `directory`. Methods raise OSError as the disk does.

    `_lock` guards `_counted`, `_overhead`, `_ignored` and `_identity`; no I/O under it. Any thread
    may call. `delete` takes a temporary file that failed and the bytes that it may have.
    """

    def __init__(
        self,
        directory: Path,
        fs: FileSystem,
        durability: Durability,
        delete: Callable[[str, int], None] = lambda path, nbytes: None,
    ) -> None:
        self.directory = directory
        self.fs = fs
        self.durability: Durability = durability
        self._names = TemporaryNames()
        self._lock = threading.Lock()
        self._root = os.fspath(directory)
        self._tag = os.path.join(self._root, TAG_FILE)
        self._counted: dict[str, int] = {}
        self._overhead = 0
        self._ignored = 0
        self._identity: tuple[int, int, bool] | None = None
        self._delete = delete

    @property
    def ignored(self) -> int:
        """How many files and directories the last inventory passed over as not this user's."""
        with self._lock:
            return self._ignored

    @property
    def overhead_bytes(self) -> int:
        """Bytes of the directories and namespace documents."""
        with self._lock:
            return self._overhead

    def document_bytes(self, namespace: BlockKey, document: Mapping[str, object]) -> int:
        """Return what a namespace's first page takes for its document, and a directory's first one
        for the tag; 0 when they are there."""
        with self._lock:
            path = os.path.join(self._root, namespace.hex(), NAMESPACE_FILE)
            known, tagged = path in self._counted, self._tag in self._counted
        size = 0 if known else len(encode_document(document)) + SMALL_FILE_BYTES
        return size if tagged else size + 2 * SMALL_FILE_BYTES

    def is_ours(self) -> bool:
        """True when the directory is the one that was read last, not removed or replaced."""
        with self._lock:
            known = self._identity
        try:
            return known is not None and self.fs.identity(self.directory) == known
        except FileNotFoundError:
            return False

    def inventory(self, take: Take = _take) -> None:
        """Make the directory, delete leftovers, and let `take` have the pages one by one.

        Raises NotPrivate, before anything is trusted, for a directory that others may write to.
        Opens no file. Forgets what was known of directories before. What `take` has no use for is
        deleted, as are empty directories.
        """
        self._make_root()
        self.fs.claim(self.directory)
        identity = self.fs.identity(self.directory)
        with self._lock:
            self._identity = None
            self._counted.clear()
            self._overhead = 0
            self._ignored = 0
        self._count(self._root)
        for name in (TAG_FILE, REUSE_FILE):
            self._count_file(os.path.join(self._root, name))
        remove_leftovers(self._root, self.fs)
        used: set[str] = set()
        useless: list[str] = []
        for found in walk(self.directory, self.fs, self._ignore):
            if found.name is None:
                useless += [found.path] if found.is_leftover else []
                continue
            used.add(found.directory)
            other = take(found, found.name)
            useless += [] if other is None else [other]
        for path in useless:
            with contextlib.suppress(OSError):
                self.fs.remove(path)
        self._count_directories(used - set(map(os.path.dirname, useless)))
        with self._lock:
            self._identity = identity

    def _make_root(self) -> None:
        """Make the directory and its parents; their names are as durable as what will lie below."""
        new = [path for path in (self.directory, *self.directory.parents) if not path.is_dir()]
        self.fs.make_directory(self.directory)
        for path in new:
            # A parent that may be written to and not read is no reason to keep nothing.
            with contextlib.suppress(PermissionError):
                self.fs.sync_directory(path.parent, self.durability)

    def _ignore(self, path: str) -> None:
        with self._lock:
            self._ignored += 1

    def _mark(self) -> None:
        """Put the tag into the directory that lets backups leave it out, unless one is there.

        With the first page that is written, not before: whoever opens a store waits for no write.
        """
        with self._lock:
            if self._tag in self._counted:
                return
        # A cache without a tag is a cache all the same; the next page tries again.
        with contextlib.suppress(OSError):
            if not self._count_file(self._tag):
                self._count(self._tag, self.fs.write(self._tag, [TAG], self.durability))

    def _count_directories(self, used: set[str]) -> None:
        """Count the directories; remove shards that are not `used` and have nothing else in."""
        for _digest, directory in namespace_directories(self.directory, self.fs):
            shards = list(shard_directories(directory, self.fs))
            for path in (directory, *shards):
                self._count(path)
            for name in _DESCRIPTIONS:
                self._count_file(os.path.join(directory, name))
            self.tidy([shard for shard in shards if shard not in used])
            if not shards:
                self._tidy_namespace(directory)

    def stage(
        self, path: str, pieces: list[Buffer], document: Mapping[str, object]
    ) -> tuple[str, int]:
        """Write a complete temporary file beside `path`; return it and its physical bytes."""
        try:
            return self._stage(path, pieces, document)
        except FileNotFoundError:
            # Another thread or process found the directory empty, and removed it.
            return self._stage(path, pieces, document)

    def _stage(
        self, path: str, pieces: list[Buffer], document: Mapping[str, object]
    ) -> tuple[str, int]:
        shard = os.path.dirname(path)
        self._prepare(shard, document)
        temporary = self._names.new(shard)
        with self._removing_on_failure(temporary, sum(memoryview(p).nbytes for p in pieces)):
            written = self.fs.write(temporary, pieces, self.durability)
        self._mark()
        return temporary, written

    def publish(self, temporary: str, path: str, time_ns: int, nbytes: int) -> None:
        """Give a staged file of `nbytes` its name and recency; the temporary file is gone in any
        case, as far as the disk deletes it."""
        with self._removing_on_failure(temporary, nbytes):
            self.fs.publish(temporary, path)
        with contextlib.suppress(OSError):
            self.fs.set_times(path, time_ns)

    def sync(self, path: str) -> None:
        """Make a published name as durable as the tier's policy says."""
        self.fs.sync_directory(os.path.dirname(path), self.durability)

    def tidy(self, shards: Iterable[str]) -> None:
        """Remove shard directories, and then their namespace's, where nothing is left in them."""
        for shard in set(shards):
            try:
                self.fs.remove_directory(shard)
            except FileNotFoundError:
                pass
            except OSError:
                continue
            self._forget(shard)
            self._tidy_namespace(os.path.dirname(shard))

    def _tidy_namespace(self, directory: str) -> None:
        with contextlib.suppress(OSError):
            if {entry.name for entry in self.fs.scan(directory)} <= {*_DESCRIPTIONS}:
                for path in (os.path.join(directory, name) for name in _DESCRIPTIONS):
                    self.fs.remove(path)
                    self._forget(path)
                self.fs.remove_directory(directory)
                self._forget(directory)

    def _prepare(self, shard: str, document: Mapping[str, object]) -> None:
        """Make the namespace's directory, its document and the shard, when they are missing."""
        directory = os.path.dirname(shard)
        described = os.path.join(directory, NAMESPACE_FILE)
        for path in (self._root, directory):
            self._make_directory(path)
        if not self._count_file(described):
            temporary = self._names.new(directory)
            raw = encode_document(document)
            with self._removing_on_failure(temporary, len(raw)):
                size = self.fs.write(temporary, [raw], self.durability)
                self.fs.publish(temporary, described)
            self._count(described, size)
        self._make_directory(shard)

    def _count_file(self, path: str) -> bool:
        """Count a small file at its size; False when there is none."""
        try:
            info = os.lstat(path)
        except FileNotFoundError:
            return False
        self._count(path, physical_bytes(info, MAX_DOCUMENT_BYTES))
        return True

    def _make_directory(self, path: str) -> None:
        made = self.fs.make_directory(path)
        if not made:
            self.fs.claim(path, links=path == self._root)
        self._count(path)
        if made:
            self.fs.sync_directory(os.path.dirname(path), self.durability)

    @contextlib.contextmanager
    def _removing_on_failure(self, temporary: str, nbytes: int) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._delete(temporary, nbytes + SMALL_FILE_BYTES)
            raise

    def _count(self, path: str, nbytes: int = SMALL_FILE_BYTES) -> None:
        """Count a directory or document once."""
        with self._lock:
            if path not in self._counted:
                self._counted[path] = nbytes + ENTRY_BYTES
                self._overhead += nbytes + ENTRY_BYTES

    def _forget(self, path: str) -> None:
        with self._lock:
            self._overhead -= self._counted.pop(path, 0)
