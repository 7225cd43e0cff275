"""Reading a cold directory without owning it, for the tier's index at start and for the CLI.

Files that belong to another user, or that others may change, are skipped and reported to `ignore`.
So is an entry that has the name of a page or directory and is something else.
"""

import gc
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.disk import DISK, WRITER_TOKEN, FileSystem, is_private, physical_bytes
from omlx_cache_storage.cold.small_files import read_document
from omlx_cache_storage.format.names import (
    NAMESPACE_FILE,
    RATE_FILE,
    TEMPORARY_PREFIX,
    PageName,
    StoredPage,
    page_path,
    parse_name,
)
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import COLD, PageId, PageInfo
from omlx_cache_storage.private import is_running

_DIGEST = re.compile("[0-9a-f]{64}")
ABANDONED_SECONDS = 3600.0
"""No write takes an hour: an older temporary file has lost its writer, even if its pid runs
again."""
Ignore = Callable[[str], None]


DESCRIPTIONS = (NAMESPACE_FILE, RATE_FILE)
"""Files beside a namespace's pages: they are deleted with its last page."""


def _unseen(path: str) -> None:
    """Take no notice."""


def is_leftover(file: str, mtime_ns: int) -> bool:
    pid, _, rest = file.removeprefix(TEMPORARY_PREFIX).partition("-")
    if not pid.isdecimal() or time.time() - mtime_ns / 1e9 > ABANDONED_SECONDS:
        return True
    if int(pid) == os.getpid():
        return not rest.startswith(f"{WRITER_TOKEN}-")
    return not is_running(int(pid))


class FoundFile(NamedTuple):
    """A file of interest: a page (`name`), or a temporary file (`name` is None)."""

    namespace: BlockKey
    name: PageName | None
    directory: str
    file: str
    nbytes: int
    mtime_ns: int

    @property
    def path(self) -> str:
        return os.path.join(self.directory, self.file)

    @property
    def is_leftover(self) -> bool:
        return self.name is None and is_leftover(self.file, self.mtime_ns)


class ColdEntry(NamedTuple):
    cold_dir: Path
    stored: StoredPage
    used_ns: int

    @property
    def page(self) -> PageId:
        return self.stored.name.id

    @property
    def namespace(self) -> BlockKey:
        return self.stored.namespace

    @property
    def info(self) -> PageInfo:
        name = self.stored.name
        return PageInfo(name.position, name.held, self.stored.nbytes, COLD)

    @property
    def path(self) -> Path:
        return Path(page_path(self.cold_dir, self.stored.namespace, self.stored.name))


def namespace_directories(
    cold_dir: Path, fs: FileSystem, ignore: Ignore = _unseen
) -> Iterator[tuple[BlockKey, str]]:
    for entry in fs.scan(cold_dir):
        digest = digest_of(entry.name)
        if digest is not None and _own(entry, stat.S_ISDIR, ignore) is not None:
            yield digest, entry.path


def digest_of(name: str) -> BlockKey | None:
    return BlockKey(bytes.fromhex(name)) if _DIGEST.fullmatch(name) else None


def shard_directories(namespace: str, fs: FileSystem, ignore: Ignore = _unseen) -> Iterator[str]:
    for entry in fs.scan(namespace):
        if len(entry.name) == 2 and _own(entry, stat.S_ISDIR, ignore) is not None:
            yield entry.path


def walk(cold_dir: Path, fs: FileSystem, ignore: Ignore = _unseen) -> Iterator[FoundFile]:
    """Yield every page and temporary file. Opens none; one stat a file."""
    for digest, _directory in namespace_directories(cold_dir, fs, ignore):
        yield from walk_namespace(cold_dir, digest, fs, ignore)


def walk_namespace(
    cold_dir: Path, digest: BlockKey, fs: FileSystem, ignore: Ignore = _unseen
) -> Iterator[FoundFile]:
    directory = os.path.join(cold_dir, digest.hex())
    if fs.own_file(directory, stat.S_ISDIR) is None:
        return
    # No key begins as this directory's name does, so it yields only temporary files that lie
    # directly in it.
    yield from walk_shard(digest, directory, fs, ignore)
    for shard in shard_directories(directory, fs, ignore):
        yield from walk_shard(digest, shard, fs, ignore)


def walk_shard(
    digest: BlockKey, directory: str, fs: FileSystem, ignore: Ignore = _unseen
) -> Iterator[FoundFile]:
    """Yield the page and temporary files of one shard's directory that are this user's and still
    exist."""
    shard = os.path.basename(directory)
    for entry in fs.scan(directory):
        name = parse_name(entry.name)
        # The shard of a key is how its name begins.
        if entry.name.startswith(TEMPORARY_PREFIX if name is None else shard):
            info = _own(entry, stat.S_ISREG, ignore)
            if info is not None:
                # One string for all files: a path for each would take as long as the other steps of
                # the scan.
                yield FoundFile(
                    digest, name, directory, entry.name, physical_bytes(info), info.st_mtime_ns
                )


def _own(
    entry: "os.DirEntry[str]", is_kind: Callable[[int], bool], ignore: Ignore
) -> os.stat_result | None:
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    if is_kind(info.st_mode) and is_private(info):
        return info
    ignore(entry.path)
    return None


def read_namespace(cold_dir: Path, digest: BlockKey) -> dict[str, object]:
    return read_document(os.path.join(cold_dir, digest.hex(), NAMESPACE_FILE), DISK)


@contextmanager
def uncollected() -> Iterator[None]:
    """Have no automatic garbage collection until the block ends.

    An index of many files is nothing but objects that stay: the collector would take a third of a
    start-up to go through them. Two threads may be in such blocks at once: the first that found it
    on puts it on again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Inventory(NamedTuple):
    """The files of a directory: pages with their times, useless files, files being written, the
    shards in use, and the entries skipped as not this user's."""

    pages: list[tuple[StoredPage, int]]
    useless: list[str]
    under_way: list[FoundFile]
    used: set[str]
    ignored: list[str]


def take_inventory(directory: Path, fs: FileSystem) -> Inventory:
    """Return the directory's inventory. Changes nothing, opens no page; raises OSError."""
    found = Inventory([], [], [], set(), [])
    for file in walk(directory, fs, found.ignored.append):
        if file.name is not None:
            found.pages.append((StoredPage(file.namespace, file.name, file.nbytes), file.mtime_ns))
        elif fs.is_being_written(file.path):
            found.under_way.append(file)
        elif file.is_leftover:
            found.useless.append(file.path)
            continue
        else:
            # An earlier version's, which lets it grow as it writes: a hole is none of its bytes.
            info = fs.own_file(file.path)
            found.under_way.append(
                file._replace(nbytes=0 if info is None else physical_bytes(info, 0))
            )
        found.used.add(file.directory)
    return found
