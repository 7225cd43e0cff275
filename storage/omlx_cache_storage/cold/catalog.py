"""Reading a cold directory without owning it: what the tier indexes at start and the CLI shows."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.document import read_document
from omlx_cache_storage.cold.records import ColdEntry, StoredPage
from omlx_cache_storage.cold.temporary import is_leftover
from omlx_cache_storage.format.names import (
    NAMESPACE_FILE,
    TEMPORARY_PREFIX,
    PageName,
    parse_name,
    shard_of,
)
from omlx_cache_storage.keys import BlockKey

_DIGEST_HEX = 64


class Found(NamedTuple):
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
        """True for a temporary file whose writer is gone."""
        return self.name is None and is_leftover(self.file, self.mtime_ns)


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """One namespace's directory and the document that its digest was made from."""

    digest: str
    document: dict[str, object]
    path: str


def namespace_directories(cold_dir: Path, fs: FileSystem) -> Iterator[tuple[BlockKey, str]]:
    """Yield the namespaces of a cold directory."""
    for entry in fs.scan(cold_dir):
        if len(entry.name) == _DIGEST_HEX and entry.is_dir(follow_symlinks=False):
            try:
                digest = BlockKey(bytes.fromhex(entry.name))
            except ValueError:
                continue
            if digest.hex() == entry.name:
                yield digest, entry.path


def walk(cold_dir: Path, fs: FileSystem) -> Iterator[Found]:
    """Yield every page and temporary file. Opens none; one stat a file."""
    for digest, _directory in namespace_directories(cold_dir, fs):
        yield from walk_namespace(cold_dir, digest, fs)


def walk_namespace(cold_dir: Path, digest: BlockKey, fs: FileSystem) -> Iterator[Found]:
    """Yield the page and temporary files of one namespace. Opens none; one stat a file."""
    directory = os.path.join(cold_dir, digest.hex())
    for entry in fs.scan(directory):
        if entry.name.startswith(TEMPORARY_PREFIX):
            found = _found(digest, None, directory, entry)
            if found is not None:
                yield found
        elif len(entry.name) == 2 and entry.is_dir(follow_symlinks=False):
            yield from _walk_shard(digest, entry, fs)


def _walk_shard(digest: BlockKey, shard: "os.DirEntry[str]", fs: FileSystem) -> Iterator[Found]:
    directory = shard.path
    for entry in fs.scan(directory):
        name = parse_name(entry.name)
        if name is None and not entry.name.startswith(TEMPORARY_PREFIX):
            continue
        if name is not None and shard_of(name.id.key) != shard.name:
            continue
        found = _found(digest, name, directory, entry)
        if found is not None:
            yield found


def _found(
    digest: BlockKey, name: PageName | None, directory: str, entry: "os.DirEntry[str]"
) -> Found | None:
    """Return what a directory entry is, None unless it is a regular file that still exists.

    `directory` is one object for all of its files: making a path for each takes as long as the
    rest of the scan.
    """
    try:
        info = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    nbytes = max(info.st_blocks * 512, info.st_size)
    return Found(digest, name, directory, entry.name, nbytes, info.st_mtime_ns)


def scan(cold_dir: Path) -> Iterator[ColdEntry]:
    """Yield the pages of a cold directory, by directory scan only."""
    for found in walk(cold_dir, FileSystem()):
        if found.name is not None:
            stored = StoredPage(found.namespace, found.name, found.nbytes)
            yield ColdEntry(cold_dir, stored, found.mtime_ns)


def namespaces(cold_dir: Path) -> list[NamespaceInfo]:
    """Return the namespaces with their documents; an unreadable document is empty."""
    fs = FileSystem()
    return [
        NamespaceInfo(digest.hex(), _document(path, fs), path)
        for digest, path in namespace_directories(cold_dir, fs)
    ]


def read_namespace(cold_dir: Path, digest: BlockKey) -> dict[str, object]:
    """Return the document of one namespace, {} when there is none that can be read."""
    return _document(os.path.join(cold_dir, digest.hex()), FileSystem())


def _document(directory: str, fs: FileSystem) -> dict[str, object]:
    return read_document(os.path.join(directory, NAMESPACE_FILE), fs)
