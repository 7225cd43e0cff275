"""Writing pages of a directory into an archive, while others may use the directory."""

import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypeVar

from omlx_cache_daemon.archive.manifest import MANIFEST_FILE, Manifest, encode_manifest
from omlx_cache_daemon.archive.members import PageAt
from omlx_cache_daemon.page_files import checked, read_file
from omlx_cache_storage.cold.disk import DISK, FileSystem
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.names import PageName, StoredPage, page_path
from omlx_cache_storage.keys import BlockKey

AnyEntry = TypeVar("AnyEntry", bound="Entry")


@dataclass(slots=True)
class Packed:
    """What went into an archive, and what did not: pages that left the directory meanwhile, and
    those that are damaged or that the disk did not give."""

    pages: int = 0
    nbytes: int = 0
    gone: int = 0
    damaged: int = 0


class Entry(Protocol):
    """A page file and when it was used: no earlier than what is behind it."""

    @property
    def stored(self) -> StoredPage: ...
    @property
    def used_ns(self) -> int: ...


def in_order(pages: Iterable[AnyEntry]) -> list[AnyEntry]:
    """Return pages in the order of an archive: each behind those before it in its chain."""

    def place(entry: AnyEntry) -> tuple[BlockKey, int, PageName]:
        return entry.stored.namespace, entry.stored.name.position, entry.stored.name

    return sorted(pages, key=place)


def pack(
    cold_dir: Path,
    pages: Iterable[Entry],
    manifest: Manifest,
    to: IO[bytes],
    fs: FileSystem = DISK,
) -> Iterator[Packed]:
    """Write an archive page by page, and yield what is written so far after each; it is whole when
    this ends. One page is in memory at a time. Raises OSError as the stream does."""
    done = Packed()
    _write(MANIFEST_FILE, encode_manifest(manifest), time.time_ns(), to)
    for page in pages:
        _add(cold_dir, page, to, fs, done)
        yield done
    to.write(bytes(2 * tarfile.BLOCKSIZE))
    to.flush()


def _add(cold_dir: Path, entry: Entry, to: IO[bytes], fs: FileSystem, done: Packed) -> None:
    page = entry.stored
    at = PageAt(page.namespace, page.name)
    try:
        raw = read_file(page_path(cold_dir, page.namespace, page.name), fs)
        checked(raw, page.namespace, page.name)
    except FileNotFoundError:
        done.gone += 1
    except (OSError, PageError):
        done.damaged += 1
    else:
        _write(at.path, raw, entry.used_ns, to)
        done.pages += 1
        done.nbytes += len(raw)


def _write(name: str, raw: bytes, time_ns: int, to: IO[bytes]) -> None:
    """Write a member with its headers."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(raw), 0o600, time_ns // 10**9
    # As text: a float would lose the end of it.
    info.pax_headers = {"mtime": f"{time_ns // 10**9}.{time_ns % 10**9:09d}"}
    to.write(info.tobuf(tarfile.PAX_FORMAT, "ascii", "strict"))
    to.write(raw)
    to.write(bytes(-len(raw) % tarfile.BLOCKSIZE))
