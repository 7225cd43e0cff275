"""Deleting a namespace from a directory that no store of this machine uses."""

from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import walk_namespace
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.files import PageFiles
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
