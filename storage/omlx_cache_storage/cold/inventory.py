"""What lies in a cold directory, read as a whole, and cleared of what is of no use."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import (
    Found,
    namespace_directories,
    shard_directories,
    walk,
)
from omlx_cache_storage.cold.disk import FileSystem, physical_bytes
from omlx_cache_storage.cold.files import DESCRIPTIONS, PageFiles
from omlx_cache_storage.cold.temporary import remove_leftovers
from omlx_cache_storage.format.names import (
    CLEARED_PREFIX,
    TEMPORARY_PREFIX,
    PageName,
    parse_name,
)

Take = Callable[[Found, PageName], None]
"""Takes a page file with what its name says."""


class Inventory(NamedTuple):
    """What lies in a directory beside pages: files that are of no use to anybody, what is being
    written, the shards that are in use, and how many files and directories were passed over as not
    this user's."""

    useless: list[str]
    under_way: list[Found]
    used: set[str]
    ignored: int


def take_inventory(directory: Path, fs: FileSystem, take: Take) -> Inventory:
    """Let `take` have the pages one by one, and return what else there is. Changes nothing, opens
    no page; raises OSError."""
    useless: list[str] = []
    under_way: list[Found] = []
    used: set[str] = set()
    ignored: list[str] = []
    for file in walk(directory, fs, ignored.append):
        if file.name is not None:
            take(file, file.name)
        elif fs.is_being_written(file.path):
            under_way.append(file)
        elif file.is_leftover:
            useless.append(file.path)
            continue
        else:
            # An earlier version's, which lets it grow as it writes: a hole is none of its bytes.
            under_way.append(file._replace(nbytes=_taken(file, fs)))
        used.add(file.directory)
    return Inventory(useless, under_way, used, len(ignored))


def remove_cleared(directory: Path, fs: FileSystem) -> None:
    """Delete what is left of namespaces that were cleared; raises nothing."""
    with contextlib.suppress(OSError):
        for entry in list(fs.scan(directory)):
            if entry.name.startswith(CLEARED_PREFIX) and entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path, fs)


def remove_tree(directory: str, fs: FileSystem) -> None:
    """Delete a namespace's files, wherever it lies, and the directories that are empty then; what
    else lies in it stays. Raises nothing."""
    with contextlib.suppress(OSError):
        for entry in list(fs.scan(directory)):
            if entry.is_dir(follow_symlinks=False):
                for file in list(fs.scan(entry.path)):
                    _remove_own(file, fs)
                with contextlib.suppress(OSError):
                    fs.remove_directory(entry.path)
            else:
                _remove_own(entry, fs)
        fs.remove_directory(directory)


def _remove_own(entry: "os.DirEntry[str]", fs: FileSystem) -> None:
    own = parse_name(entry.name) is not None or entry.name in DESCRIPTIONS
    if own or entry.name.startswith(TEMPORARY_PREFIX):
        fs.remove(entry.path)


def _taken(file: Found, fs: FileSystem) -> int:
    info = fs.own_file(file.path)
    return 0 if info is None else physical_bytes(info, 0)


def remove_useless(files: PageFiles, paths: list[str], is_used: Callable[[str], bool]) -> None:
    """Delete some of what an inventory found useless. Nobody else changes the directory meanwhile;
    `is_used` tells of a path that is of use by now."""
    for path in (path for path in paths if not is_used(path)):
        with contextlib.suppress(OSError):
            files.fs.remove(path)


def clear_up(files: PageFiles, found: Inventory) -> None:
    """Delete empty directories, and count the others. Nobody else changes the directory
    meanwhile."""
    fs = files.fs
    remove_leftovers(os.fspath(files.directory), fs)
    used = found.used - set(map(os.path.dirname, found.useless))
    for digest, directory in namespace_directories(files.directory, fs):
        files.count_document(directory)
        shards = list(shard_directories(directory, fs))
        for shard in shards:
            files.expect(digest, os.path.basename(shard), 0)
        files.tidy([shard for shard in shards if shard not in used])
        if not shards:
            files.tidy_namespace(directory)
