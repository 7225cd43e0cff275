"""Reads page files whole, past the system's file cache, and reports the ones that are not as
written.

It needs no store and takes no lock: files are immutable. A file that vanishes meanwhile was
evicted, and one without its name yet is being written; neither is a trouble.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal, TypeVar

from safetensors import SafetensorError, deserialize

from omlx_cache.control.replies import PageDetails
from omlx_cache_daemon.changing import remove_opened
from omlx_cache_storage.cold.catalog import namespace_directories, shard_directories, walk_shard
from omlx_cache_storage.cold.disk import DISK, FileSystem
from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageError, UndecodablePage
from omlx_cache_storage.format.header import decode_header, payload_checksum
from omlx_cache_storage.format.names import PageName, StoredPage, name_of, page_path, parse_name
from omlx_cache_storage.format.packing import unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page

T = TypeVar("T")
PIECE_BYTES = 1 << 20
"""Bytes that one call to the system reads."""
Verdict = Literal["good", "damaged", "unread"]
"""`damaged`: no store can use the file. `unread`: it may be sound, but the disk refused it, or a
later version wrote it."""
_DATA: Final = {"good": "verified", "damaged": "damaged", "unread": "not verified"}


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict on a page's file, or on a directory (`page` is None) that cannot be listed."""

    file: str
    page: StoredPage | None
    verdict: Verdict = "good"
    trouble: str = ""

    @property
    def nbytes(self) -> int:
        return 0 if self.page is None else self.page.nbytes

    @property
    def place(self) -> str:
        """The file's namespace, shard and name: what `after` takes."""
        return _place(self.file)


def check_pages(cold_dir: Path, *, after: str = "", fs: FileSystem = DISK) -> Iterator[Checked]:
    """Read the pages of a directory one by one, in the order of their places, behind the place
    `after`. Has the names of one shard and one page in memory. Raises OSError when `cold_dir`
    cannot be listed."""
    for digest, directory in sorted(namespace_directories(cold_dir, fs)):
        shards, trouble = _listed(shard_directories(directory, fs), str)
        if trouble:
            yield Checked(directory, None, "unread", trouble)
        for shard in shards:
            if _place(os.path.join(shard, "~")) < after:
                continue
            found, trouble = _listed(walk_shard(digest, shard, fs), attrgetter("file"))
            if trouble:
                yield Checked(shard, None, "unread", trouble)
            for one in found:
                if one.name is None or _place(one.path) <= after:
                    continue
                found_out = check_page(one.path, StoredPage(digest, one.name, one.nbytes), fs)
                if found_out is not None:
                    yield found_out


def check_page(path: str, page: StoredPage, fs: FileSystem = DISK) -> Checked | None:
    """Read a page's file whole; None for one that was deleted, also while it was being read."""
    try:
        with fs.reading(path) as fd:
            try:
                checked(read_from_disk(fd), page.namespace, page.name)
            except (PageError, OSError):
                if not fs.is_at(fd, path):
                    return None
                raise
    except FileNotFoundError:
        return None
    except UndecodablePage as error:
        return Checked(path, page, "unread", f"a later version wrote it: {error}")
    except PageError as error:
        return Checked(path, page, "damaged", f"{error.reason}: {error}")
    except OSError as error:
        return Checked(path, page, "unread", f"cannot be read: {error.strerror}")
    return Checked(path, page)


def with_verdict(page: PageDetails) -> PageDetails:
    """Read the file that a page's description names, and return the description with `data`; with
    an `error` unless the file is right or gone."""
    if page.error is not None:
        return page
    name = parse_name(os.path.basename(page.path))
    if name is None:
        return replace(page, data="not verified: not on disk")
    stored = StoredPage(BlockKey(bytes.fromhex(page.namespace)), name, page.bytes)
    found = check_page(page.path, stored)
    if found is None:
        return replace(page, data="not verified: evicted meanwhile")
    return replace(page, data=_DATA[found.verdict], error=found.trouble or None)


def checked(raw: bytes, namespace: BlockKey, name: PageName) -> Page:
    """Raises PageError unless a file's bytes are whole, undamaged, and the page that its name
    says."""
    header = decode_header(raw)
    if (meta := unwrapped(header.meta)).namespace != namespace or name_of(meta) != name:
        raise ForeignPage("the file holds another page than its name says")
    payload = memoryview(raw)[header.data_offset :]
    if payload.nbytes != header.meta.nbytes:
        raise CorruptPage(
            f"a payload of {payload.nbytes} bytes, its header says {header.meta.nbytes}"
        )
    if payload_checksum(payload) != header.checksum:
        raise CorruptPage("the payload does not match its checksum")
    if _tensors(raw) != {one.name: (one.dtype, [*one.shape]) for one in header.meta.tensors}:
        raise CorruptPage("the safetensors package reads other tensors than its header says")
    return Page(header.meta, payload)


def _tensors(raw: bytes) -> dict[str, tuple[str, list[int]]]:
    try:
        return {name: (one["dtype"], one["shape"]) for name, one in deserialize(raw)}
    except SafetensorError as error:
        raise CorruptPage(f"the safetensors package refuses the file: {error}") from error


def remove_damaged(cold_dir: Path, pages: Iterable[StoredPage], fs: FileSystem = DISK) -> int:
    """Delete the given pages whose files are still damaged, and none that was written anew
    meanwhile; return how many. No process waits while they are read."""
    removed = 0
    for page in pages:
        path = page_path(cold_dir, page.namespace, page.name)
        with contextlib.suppress(FileNotFoundError), fs.reading(path) as fd:
            again = check_page(path, page, fs)
            if again is not None and again.verdict == "damaged":
                removed += remove_opened(cold_dir, page, fd, fs)
    return removed


def _listed(found: Iterable[T], key: Callable[[T], str]) -> tuple[list[T], str]:
    try:
        return sorted(found, key=key), ""
    except OSError as error:
        return [], f"cannot be listed: {error.strerror}"


def _place(path: str) -> str:
    return "/".join(path.split(os.sep)[-3:])


def read_from_disk(fd: int) -> bytes:
    """Return an open file's bytes, past the system's file cache; raises OSError."""
    pieces, at = [], 0
    with contextlib.ExitStack() as ending:
        if not pass_cache_by(fd):
            ending.callback(drop_cached, fd)
        # Anonymous memory begins at a page's border, as reads past the cache want it.
        memory = ending.enter_context(mmap.mmap(-1, PIECE_BYTES))
        buffer = ending.enter_context(memoryview(memory))
        # A read ends between two pages of memory at the end of a file alone.
        while not at % mmap.PAGESIZE and (came := os.preadv(fd, [buffer], at)):
            pieces.append(bytes(buffer[:came]))
            at += came
    return b"".join(pieces)


def pass_cache_by(fd: int) -> bool:
    """Have reads of a descriptor come from the disk and leave the system's file cache as it is;
    False where the system does not offer it. Buffers and offsets are then multiples of a page."""
    try:
        if hasattr(os, "O_DIRECT"):
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
            # Some take the flag and refuse the reads.
            os.preadv(fd, [mmap.mmap(-1, mmap.PAGESIZE)], 0)
            return True
        if hasattr(fcntl, "F_NOCACHE"):
            fcntl.fcntl(fd, fcntl.F_NOCACHE, 1)
            return True
    except OSError:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    return False


def drop_cached(fd: int) -> None:
    """Take a descriptor's file out of the system's file cache; raises nothing."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
