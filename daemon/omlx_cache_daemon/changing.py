"""Changing a directory from outside of its stores: running stores learn of it.

A change is made as stores make it: while no other process changes the directory, a few files at a
time, each noted in the ledger. Stores miss deleted pages from their next lookup on, and their byte
counts go on. They follow another budget or other pins from their next write or idle moment on.
Functions raise OSError when the disk refuses, or others keep the directory for too long.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import walk_namespace
from omlx_cache_storage.cold.disk import DISK, FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.ledger import SMALLEST_BYTES, Ledger
from omlx_cache_storage.cold.ledger_records import (
    Cancelled,
    Change,
    Emptied,
    Rebudgeted,
    Removed,
    Removing,
    Repinned,
)
from omlx_cache_storage.cold.small_files import (
    BUDGET,
    PINS,
    Budget,
    SmallFile,
    read_budget,
    read_pins,
    write_budget,
    write_pins,
)
from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.format.names import StoredPage, page_path
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.pins import PinRecord, living
from omlx_cache_storage.private import trouble

TOGETHER = 32
"""Files that are announced at a time: the smallest ledger has room for them."""
WAIT_SECONDS = 10.0


class ChangeRefused(CacheError):
    """The text says why, and what to do."""


class _File(NamedTuple):
    """A file to delete, and its page; None for one that a dead writer left."""

    path: str
    page: StoredPage | None
    fd: int | None = None
    """Open on the file that is meant: another one of its name stays."""


def remove_namespace(cold_dir: Path, digest: BlockKey, fs: FileSystem = DISK) -> int:
    """Delete the page files of a namespace, and its directories if nothing else lies in them;
    return how many pages. Files that are no pages stay, and so does the file of a living writer.
    Files that were deleted before an error stay deleted."""
    files = []
    for found in list(walk_namespace(cold_dir, digest, fs)):
        if found.name or (found.is_leftover and not fs.is_being_written(found.path)):
            name, nbytes = found.name, found.nbytes
            page = None if name is None else StoredPage(found.namespace, name, nbytes)
            files.append(_File(found.path, page))
    _delete(cold_dir, files, fs)
    return sum(file.page is not None for file in files)


def remove_useless(
    cold_dir: Path, temporary: Iterable[str], shards: Iterable[str], fs: FileSystem = DISK
) -> int:
    """Delete the files that dead writers left, and empty directories of shards; return how many
    files."""
    files = [_File(path, None) for path in temporary if not fs.is_being_written(path)]
    return _delete(cold_dir, files, fs, list(shards))


def remove_pages(cold_dir: Path, pages: Iterable[StoredPage], fs: FileSystem = DISK) -> int:
    """Delete page files in the given order, and emptied directories; return how many files."""
    files = [_File(page_path(cold_dir, page.namespace, page.name), page) for page in pages]
    _delete(cold_dir, files, fs)
    return len(files)


def remove_opened(cold_dir: Path, page: StoredPage, fd: int, fs: FileSystem) -> int:
    """Delete a damaged page's file if it is the one that is open, and none that was written anew;
    return how many were deleted."""
    return _delete(cold_dir, [_File(page_path(cold_dir, page.namespace, page.name), page, fd)], fs)


def _delete(
    cold_dir: Path, files: Sequence[_File], fs: FileSystem, empty: Sequence[str] = ()
) -> int:
    """Return how many files were the expected ones."""
    deleted = start = 0
    total = max(len(files), len(empty))
    if not total:
        return 0
    with contextlib.closing(_ledger_of(cold_dir, fs)) as ledger:
        while start < total:
            with ledger.held(WAIT_SECONDS):
                while start < total and (count := ledger.allow(min(total - start, TOGETHER))):
                    part = slice(start, start + count)
                    meant = [f for f in files[part] if f.fd is None or fs.is_at(f.fd, f.path)]
                    _delete_some(cold_dir, meant, fs, ledger, empty[part])
                    deleted, start = deleted + len(meant), start + count
    return deleted


def _delete_some(
    cold_dir: Path,
    files: Sequence[_File],
    fs: FileSystem,
    ledger: Ledger,
    empty: Sequence[str],
) -> None:
    """Delete a few files and empty directories while the directory is held, and announce them."""
    changes: list[Change] = []
    pages = tuple(file.page for file in files if file.page is not None)
    if pages:
        ledger.append([Removing(pages)])
    try:
        for path, page, fd in files:
            fs.remove(path)
            why, temporary = "removed" if fd is None else "damaged", os.path.basename(path)
            changes.append(Removed(page, why) if page else Cancelled(temporary))
    finally:
        shards = {*empty, *(os.path.dirname(file.path) for file in files)}
        emptied = PageFiles(cold_dir, fs, "none").tidy(shards)
        ledger.append([*changes, *(Emptied(*one) for one in emptied)])


def change_budget(
    cold_dir: Path, change: Callable[[Budget | None], Budget], fs: FileSystem = DISK
) -> Budget:
    """Replace a directory's budget by what `change` makes of it, durably and while no other process
    changes it. Running stores evict down to it, or else the next one that opens. Raises
    ChangeRefused."""
    with contextlib.closing(_ledger_of(cold_dir, fs)) as ledger, ledger.held(WAIT_SECONDS):
        before = read_budget(cold_dir, fs)
        budget = change(before)
        if budget != before and not write_budget(cold_dir, budget, fs):
            _check_newer(BUDGET, cold_dir, fs)
            not_private = trouble(cold_dir, cold_dir.stat())
            raise ChangeRefused(not_private or f"{cold_dir} is not this user's alone")
        # Of the same one too: the process that wrote it may have been killed before it said so.
        ledger.append([Rebudgeted()])
        return budget


def change_pins(
    cold_dir: Path,
    change: Callable[[tuple[PinRecord, ...]], Iterable[PinRecord]],
    fs: FileSystem = DISK,
) -> tuple[PinRecord, ...]:
    """Replace a directory's pins by what `change` makes of the living ones, as `change_budget`
    does."""
    with contextlib.closing(_ledger_of(cold_dir, fs)) as ledger, ledger.held(WAIT_SECONDS):
        before = read_pins(cold_dir, fs)
        after = tuple(change(living(before, time.time_ns())))
        if after != before:
            try:
                if not write_pins(cold_dir, after, fs):
                    _check_newer(PINS, cold_dir, fs)
            except ValueError as error:
                raise ChangeRefused(f"{error}; unpin something first") from error
        ledger.append([Repinned()])
        return after


def _check_newer(file: SmallFile, cold_dir: Path, fs: FileSystem) -> None:
    if file.is_newer(cold_dir, fs):
        raise ChangeRefused(
            f"a newer version of omlx-cache wrote {cold_dir / file.name}, and may have said more "
            "than this one understands: use that version, or delete the file"
        )


def _ledger_of(cold_dir: Path, fs: FileSystem) -> Ledger:
    """A directory that no store has used gets one."""
    ledger = Ledger(cold_dir, fs)
    ledger.open(SMALLEST_BYTES)
    return ledger
