"""Deleting pages of a directory from outside of its stores: those that run on it are told.

It is done as stores do it: while nobody else changes the directory, a few files at a time, each
noted in the ledger. They miss the pages from their next look-up on, and their byte counts go on.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import scan, walk_namespace
from omlx_cache_storage.cold.changes import Cancelled, Change, Emptied, Removed, Removing, encode
from omlx_cache_storage.cold.contents import rooted
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.ledger import SMALLEST_BYTES, Ledger
from omlx_cache_storage.cold.records import SMALL_FILE_BYTES, ColdEntry
from omlx_cache_storage.format.names import ENTRY_BYTES, LEDGER_FILE, StoredPage, page_path
from omlx_cache_storage.keys import BlockKey

TOGETHER = 32
"""Files that are told of at a time: the smallest ledger has room for them."""
WAIT_SECONDS = 10.0
"""For so long a directory is waited for that others change."""


class Deleted(NamedTuple):
    """How many page files were deleted, and their physical bytes."""

    pages: int
    nbytes: int


class _File(NamedTuple):
    """A file to delete, and its page; None for one that a dead writer left."""

    path: str
    page: StoredPage | None
    fd: int | None = None
    """Open on the file that is meant: another one of its name stays."""


def remove_namespace(cold_dir: Path, digest: BlockKey, fs: FileSystem | None = None) -> Deleted:
    """Delete the page files of a namespace, and its directories if nothing else lies in them.

    Files that are no pages stay, and so does what a living writer is writing. Raises OSError when
    the disk refuses, or others keep the directory for too long; what was deleted by then is gone.
    """
    fs = fs or FileSystem()
    files = []
    for found in list(walk_namespace(cold_dir, digest, fs)):
        if found.name is not None:
            page = StoredPage(found.namespace, found.name, found.nbytes)
            files.append(_File(found.path, page))
        elif found.is_leftover and not fs.is_being_written(found.path):
            files.append(_File(found.path, None))
    _delete(cold_dir, files, fs)
    pages = [file.page for file in files if file.page is not None]
    return Deleted(len(pages), sum(page.nbytes for page in pages))


def remove_useless(
    cold_dir: Path, temporary: Iterable[str], shards: Iterable[str], fs: FileSystem | None = None
) -> None:
    """Delete the files that dead writers left, and directories of shards that nothing is in.
    Otherwise as `remove_namespace`."""
    fs = fs or FileSystem()
    files = [_File(path, None) for path in temporary if not fs.is_being_written(path)]
    _delete(cold_dir, files, fs, list(shards))


def entries(cold_dir: Path) -> list[ColdEntry]:
    """Return the pages of a directory with the stamps that a store would give them, in no order.

    Opens no file. Raises OSError.
    """
    found = ((entry.stored, entry.used_ns) for entry in scan(cold_dir))
    return [ColdEntry(cold_dir, stored, stamp_ns) for stored, stamp_ns in rooted(found)]


def root_bytes(cold_dir: Path, fs: FileSystem | None = None) -> int:
    """Return what a directory takes of the disk without its namespaces: of its ledger only what
    has been written. Raises OSError."""
    files = (entry.stat(follow_symlinks=False) for entry in (fs or FileSystem()).scan(cold_dir))
    small = [512 * info.st_blocks + ENTRY_BYTES for info in files if stat.S_ISREG(info.st_mode)]
    return SMALL_FILE_BYTES + sum(small)


def remove_pages(cold_dir: Path, pages: Iterable[StoredPage], fs: FileSystem | None = None) -> int:
    """Delete page files in the given order, and directories that nothing is left in; return how
    many files. Otherwise as `remove_namespace`."""
    files = [_File(page_path(cold_dir, page.namespace, page.name), page) for page in pages]
    _delete(cold_dir, files, fs or FileSystem())
    return len(files)


def remove_opened(cold_dir: Path, page: StoredPage, fd: int, fs: FileSystem) -> int:
    """Delete a page's file if it is the one that is open, and none that was written anew; return
    how many were deleted. Otherwise as `remove_namespace`."""
    path = page_path(cold_dir, page.namespace, page.name)
    return _delete(cold_dir, [_File(path, page, fd)], fs)


def _delete(
    cold_dir: Path, files: Sequence[_File], fs: FileSystem, empty: Sequence[str] = ()
) -> int:
    """Return how many files were those that were meant."""
    deleted = start = 0
    total = max(len(files), len(empty))
    with ledger_of(cold_dir, fs) as ledger:
        while start < total:
            with contextlib.nullcontext() if ledger is None else ledger.held(WAIT_SECONDS):
                while start < total and (count := _allowed(ledger, total - start)):
                    end = start + count
                    meant = [file for file in files[start:end] if _is_meant(file, fs)]
                    _delete_some(cold_dir, meant, fs, ledger, empty[start:end])
                    deleted, start = deleted + len(meant), end
    return deleted


def _allowed(ledger: Ledger | None, files: int) -> int:
    some = min(files, TOGETHER)
    return some if ledger is None else ledger.allow(some)


def _is_meant(file: _File, fs: FileSystem) -> bool:
    return file.fd is None or fs.is_at(file.fd, file.path)


def _delete_some(
    cold_dir: Path,
    files: Sequence[_File],
    fs: FileSystem,
    ledger: Ledger | None,
    empty: Sequence[str],
) -> None:
    """Delete a few files while the directory is held, and tell of those that are gone; and
    directories, if nothing is in them."""
    changes: list[Change] = []

    def emptied(namespace: BlockKey, shard: str) -> None:
        changes.append(Emptied(namespace, shard))

    pages = tuple(file.page for file in files if file.page is not None)
    if ledger is not None and pages:
        ledger.append([encode(Removing(pages))])
    try:
        for file in files:
            fs.remove(file.path)
            if file.page is None:
                changes.append(Cancelled(os.path.basename(file.path)))
            else:
                changes.append(Removed(file.page, "removed"))
    finally:
        shards = {*empty, *(os.path.dirname(file.path) for file in files)}
        PageFiles(cold_dir, fs, "none", emptied=emptied).tidy(shards)
        if ledger is not None and changes:
            ledger.append([encode(change) for change in changes])


@contextlib.contextmanager
def ledger_of(cold_dir: Path, fs: FileSystem) -> Iterator[Ledger | None]:
    """Open the ledger of a directory; None for one that no store has used since there are any."""
    if not fs.exists(os.path.join(cold_dir, LEDGER_FILE)):
        yield None
        return
    ledger = Ledger(cold_dir, fs)
    ledger.open(SMALLEST_BYTES)
    try:
        yield ledger
    finally:
        ledger.close()
