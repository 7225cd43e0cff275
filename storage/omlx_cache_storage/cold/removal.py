"""Deleting pages from a directory that no store of this machine uses."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import scan, walk_namespace
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.records import ColdEntry
from omlx_cache_storage.cold.rooted import rooted
from omlx_cache_storage.keys import BlockKey


class Removed(NamedTuple):
    """How many page files were deleted, and their physical bytes."""

    pages: int
    nbytes: int


def remove_namespace(cold_dir: Path, digest: BlockKey, fs: FileSystem | None = None) -> Removed:
    """Delete the page files of a namespace, and its directories if nothing else lies in them.

    Files that are no pages stay, and so does what a living writer is writing. A store that runs
    on the directory after all misses the pages and goes on. Raises OSError when the disk refuses;
    what was deleted by then is gone.
    """
    fs = fs or FileSystem()
    pages = nbytes = 0
    shards = set()
    for found in list(walk_namespace(cold_dir, digest, fs)):
        if found.name is not None or found.is_leftover:
            fs.remove(found.path)
            shards.add(found.directory)
        if found.name is not None:
            pages, nbytes = pages + 1, nbytes + found.nbytes
    PageFiles(cold_dir, fs, "none").tidy(shards)
    return Removed(pages, nbytes)


def entries(cold_dir: Path) -> list[ColdEntry]:
    """Return the pages of a directory with the stamps that a store would give them, in no order.

    Opens no file. Raises OSError.
    """
    found = ((entry.stored, entry.used_ns) for entry in scan(cold_dir))
    return [ColdEntry(cold_dir, stored, stamp_ns) for stored, stamp_ns in rooted(found)]


def remove_pages(cold_dir: Path, paths: Iterable[Path], fs: FileSystem | None = None) -> int:
    """Delete page files in the given order, and directories that nothing is left in; return how
    many files. Otherwise as `remove_namespace`."""
    fs = fs or FileSystem()
    shards = set()
    pages = 0
    try:
        for path in paths:
            fs.remove(path)
            shards.add(str(path.parent))
            pages += 1
    finally:
        PageFiles(cold_dir, fs, "none").tidy(shards)
    return pages
