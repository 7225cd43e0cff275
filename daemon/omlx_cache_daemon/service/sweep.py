"""Removes what dead processes left: temporary files, empty folders, sockets."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from omlx_cache.control.listener import remove_stale
from omlx_cache.control.paths import search_places
from omlx_cache_storage.cold.catalog import namespace_directories, shard_directories
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.small_files import is_leftover
from omlx_cache_storage.format.names import TEMPORARY_PREFIX


def leftovers(directory: Path, fs: FileSystem) -> Iterator[str]:
    """Yield the temporary files in a cold directory whose writers are gone; raises OSError. Looks
    at names, and at nothing else of a page."""
    yield from _temporaries(os.fspath(directory), fs)
    for _, namespace in namespace_directories(directory, fs):
        yield from _temporaries(namespace, fs)
        for shard in shard_directories(namespace, fs):
            yield from _temporaries(shard, fs)


def empty_shards(directory: Path, fs: FileSystem) -> Iterator[str]:
    """Yield the folders for pages that have none; raises OSError."""
    for _, namespace in namespace_directories(directory, fs):
        for shard in shard_directories(namespace, fs):
            if next(fs.scan(shard), None) is None:
                yield shard


def sweep_sockets() -> int:
    """Remove the control sockets of dead processes; return how many. Raises nothing."""
    removed = 0
    for place in search_places():
        with contextlib.suppress(OSError):
            removed += len(remove_stale(place))
    return removed


def _temporaries(directory: str, fs: FileSystem) -> Iterator[str]:
    for entry in fs.scan(directory):
        if entry.name.startswith(TEMPORARY_PREFIX):
            with contextlib.suppress(FileNotFoundError):
                info = entry.stat(follow_symlinks=False)
                if is_leftover(entry.name, info.st_mtime_ns):
                    yield entry.path
