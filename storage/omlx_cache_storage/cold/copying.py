"""Copying a cold directory to another disk: each page is verified on the disk it came to.

A file has its name in the copy only once it is durable there and has its time, so that a copy that
was interrupted is gone on with: what is there already is not copied again.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.checking import PageChecker
from omlx_cache_storage.cold.disk import FileSystem, physical_bytes
from omlx_cache_storage.cold.records import SMALL_FILE_BYTES
from omlx_cache_storage.cold.temporary import TemporaryNames, remove_leftovers
from omlx_cache_storage.format.names import LEDGER_FILE, TEMPORARY_PREFIX, StoredPage, parse_name
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.private import is_private

MARKER_FILE = "moving.json"
"""In a copy that is not complete: it says of what."""
_DEPTH = 3
"""The directory, a namespace, a shard; nothing lies deeper."""


class Copied(NamedTuple):
    """A file that was copied, or was there already; or why it was not: `damaged` for a page that no
    store could use, `left` for what is to be looked at."""

    path: str
    nbytes: int
    damaged: str | None = None
    left: str | None = None


class Extent(NamedTuple):
    """How much a copy takes of a disk."""

    files: int
    nbytes: int


def extent_of(directory: Path, fs: FileSystem | None = None) -> Extent:
    """Return how much a copy of a directory takes, or what an unfinished one has. Opens nothing."""
    files = nbytes = 0
    for here in _directories(os.fspath(directory), fs or FileSystem()):
        files += 1 + len(here.files)
        nbytes += SMALL_FILE_BYTES + sum(map(physical_bytes, here.files.values()))
    return Extent(files, nbytes)


def copy_directory(source: Path, target: Path, fs: FileSystem | None = None) -> Iterator[Copied]:
    """Copy what lies in a directory that nobody changes meanwhile, but its ledger, and yield each
    file once it is durable in `target`, which is made if need be.

    Times are kept, modes are 0600 and 0700. Damaged pages, links and what others may change are
    left behind. Raises OSError for what a disk refuses; what was copied by then stays.
    """
    fs = fs or FileSystem()
    names = TemporaryNames()
    made = [os.fspath(target)]
    with PageChecker(fs) as checker:
        copier = _Copier(fs, names, checker)
        for here in _directories(os.fspath(source), fs):
            into = os.path.normpath(os.path.join(target, os.path.relpath(here.path, source)))
            fs.make_directory(into)
            made.append(into)
            remove_leftovers(into, fs)
            for name, info in sorted(here.files.items()):
                yield copier.copy(os.path.join(here.path, name), into, info)
            yield from (Copied(path, 0, left=why) for path, why in here.left)
    for directory in reversed(made):
        fs.sync_directory(directory, "fsync")


class _Directory(NamedTuple):
    path: str
    files: dict[str, os.stat_result]
    left: list[tuple[str, str]]


def _directories(path: str, fs: FileSystem, depth: int = 1) -> Iterator[_Directory]:
    """Yield a directory with its files and what is left behind, then those in it."""
    here = _Directory(path, {}, [])
    inner = []
    for entry in fs.scan(path):
        if entry.name.startswith(TEMPORARY_PREFIX):
            continue
        if depth == 1 and entry.name in (LEDGER_FILE, MARKER_FILE):
            continue
        try:
            info = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not is_private(info):
            here.left.append((entry.path, "is another user's, or may be changed by others"))
        elif stat.S_ISREG(info.st_mode):
            here.files[entry.name] = info
        elif stat.S_ISDIR(info.st_mode) and depth < _DEPTH:
            inner.append(entry.path)
        else:
            here.left.append((entry.path, "is no page, and no directory of pages"))
    yield here
    for directory in sorted(inner):
        yield from _directories(directory, fs, depth + 1)


class _Copier:
    """Copies single files."""

    def __init__(self, fs: FileSystem, names: TemporaryNames, checker: PageChecker) -> None:
        self._fs = fs
        self._names = names
        self._checker = checker

    def copy(self, path: str, into: str, info: os.stat_result) -> Copied:
        nbytes = physical_bytes(info)
        page = _page_of(path, nbytes)
        final = os.path.join(into, os.path.basename(path))
        if self._is_there(final, info, page):
            return Copied(path, nbytes)
        temporary = self._names.new(into)
        try:
            fd = self._fs.open(path)
            try:
                self._fs.copy(fd, temporary, "fsync")
            finally:
                self._fs.close(fd)
            wrong = None if page is None else self._checker.trouble_of(temporary, page)
            if wrong is not None and page is not None:
                found = self._checker.trouble_of(path, page)
                if found is None:
                    text = "what this disk returns is not what was written to it"
                    raise OSError(errno.EIO, text, final)
                self._fs.remove(temporary)
                verdict, why = found
                if verdict == "damaged":
                    return Copied(path, nbytes, damaged=why)
                return Copied(path, nbytes, left=why)
            self._fs.set_times(temporary, info.st_mtime_ns)
            self._fs.publish(temporary, final)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.remove(temporary)
            raise
        return Copied(path, nbytes)

    def _is_there(self, final: str, info: os.stat_result, page: StoredPage | None) -> bool:
        """True for what an earlier try copied; gives a page that was used since its time."""
        known = self._fs.own_file(final)
        if known is None or known.st_size != info.st_size:
            return False
        if known.st_mtime_ns == info.st_mtime_ns:
            return True
        if page is not None:
            self._fs.set_times(final, info.st_mtime_ns)
        return page is not None


def _page_of(path: str, nbytes: int) -> StoredPage | None:
    """Return the page that a file is, None for any other."""
    shard, file = os.path.split(path)
    name = parse_name(file)
    if name is None:
        return None
    try:
        digest = bytes.fromhex(os.path.basename(os.path.dirname(shard)))
    except ValueError:
        return None
    return StoredPage(BlockKey(digest), name, nbytes)
