"""Reading every page file of a cold directory, to see whether it is what was written.

It needs no store and takes no lock: files are immutable, so that one that vanishes meanwhile was
evicted, and one without its name yet is being written; neither is a trouble.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from omlx_cache_daemon.changing import remove_opened
from omlx_cache_storage.cold.catalog import namespace_directories, shard_directories
from omlx_cache_storage.cold.disk import DISK, FileSystem, physical_bytes
from omlx_cache_storage.cold.reader import describes
from omlx_cache_storage.errors import CorruptPage, PageError, UndecodablePage
from omlx_cache_storage.format.header import (
    MAX_HEADER_BYTES,
    PayloadDigest,
    decode_header,
    header_length,
)
from omlx_cache_storage.format.names import TEMPORARY_PREFIX, StoredPage, page_path, parse_name
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.private import is_private

Verdict = Literal["good", "damaged", "unread", "foreign"]
"""`damaged`: no store can use the file. `unread`: it may be sound, but the disk refused it, or a
later version wrote it. `foreign`: stores pass it over as not a page of this user's."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one file: `trouble` says in words what is wrong with it, None if nothing is.

    `nbytes` are those on the disk. `place` is what resumes behind it.
    """

    file: str
    page: StoredPage | None
    nbytes: int
    verdict: Verdict = "good"
    trouble: str | None = None

    @property
    def path(self) -> Path:
        # Made when it is asked for: in Python 3.12 a `Path` keeps its parts for good.
        return Path(self.file)

    @property
    def place(self) -> str:
        """The file's namespace, shard and name: what `after` takes."""
        return "/".join(self.file.split(os.sep)[-3:])


class Pace:
    """So many bytes a second at most, 0 for no limit. Any thread may call.

    `bytes_per_second` may be changed at any time; `_due` belongs to the thread that reads.
    """

    def __init__(self, bytes_per_second: float = 0.0) -> None:
        self.bytes_per_second = bytes_per_second
        self._stopped = threading.Event()
        self._due = 0.0

    def stop(self) -> None:
        """End what goes by this pace, in the middle of a wait too."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def wait(self, nbytes: int) -> bool:
        """Wait for as long as the bytes that were read may take; False once it was stopped."""
        rate = self.bytes_per_second
        if rate > 0:
            now = time.monotonic()
            self._due = max(now, self._due) + nbytes / rate
            return not self._stopped.wait(self._due - now)
        return not self._stopped.is_set()


def check_pages(
    cold_dir: Path,
    *,
    after: str | None = None,
    pace: Pace | None = None,
    fs: FileSystem = DISK,
    namespace: BlockKey | None = None,
) -> Iterator[Checked]:
    """Read the page files of a directory, or of one namespace, one by one, in the order of their
    places; begin behind the place `after`.

    Has the names of one shard and a mebibyte in memory, and leaves the system's file cache as it
    is. Ends early when the pace is stopped. Raises OSError when `cold_dir` cannot be listed.
    """
    pace = pace or Pace()
    with PageChecker(fs, pace) as checker:
        for where in _shards(cold_dir, after, fs, namespace):
            if isinstance(where, Checked):
                yield where
                continue
            for name in where.names:
                checked = checker.check(where.namespace, where.path, name)
                if pace.is_stopped:
                    return
                if checked is not None:
                    yield checked


class _Shard(NamedTuple):
    """A shard's directory with the sorted names of what lies in it."""

    namespace: BlockKey
    path: str
    names: list[str]


def _shards(
    cold_dir: Path, after: str | None, fs: FileSystem, only: BlockKey | None
) -> Iterator[_Shard | Checked]:
    """Yield the shards in order, each with what lies in it behind `after`, and the directories on
    the way that nobody looks into."""
    begin = tuple(after.split("/")) if after else ()
    passed_over: list[str] = []
    found = [(path, of) for of, path in namespace_directories(cold_dir, fs, passed_over.append)]
    for directory, digest in sorted([*found, *((path, None) for path in passed_over)], key=_path):
        if (os.path.basename(directory),) < begin[:1]:
            continue
        if only not in (None, digest):
            continue
        if digest is None:
            yield _passed_over(directory)
            continue
        try:
            passed_over = []
            shards = sorted([*shard_directories(directory, fs, passed_over.append), *passed_over])
        except OSError as error:
            yield Checked(directory, None, 0, "unread", f"cannot be listed: {error.strerror}")
            continue
        for shard in shards:
            place = os.path.basename(directory), os.path.basename(shard)
            if place < begin[:2]:
                continue
            if shard in passed_over:
                yield _passed_over(shard)
                continue
            try:
                names = sorted(entry.name for entry in fs.scan(shard))
            except OSError as error:
                yield Checked(shard, None, 0, "unread", f"cannot be listed: {error.strerror}")
                continue
            yield _Shard(digest, shard, [name for name in names if (*place, name) > begin])


def _path(known: tuple[str, BlockKey | None]) -> str:
    return known[0]


def _passed_over(directory: str) -> Checked:
    try:
        info = os.lstat(directory)
    except OSError as error:
        return Checked(directory, None, 0, "unread", f"cannot be looked at: {error.strerror}")
    return Checked(directory, None, 0, "foreign", _foreign(info, stat.S_ISDIR))


class PageChecker:
    """Reads page files past the system's cache, into one buffer. One thread at a time; it is
    closed when its `with` ends."""

    def __init__(self, fs: FileSystem, pace: Pace | None = None) -> None:
        self._fs = fs
        self._pace = pace or Pace()
        # Anonymous memory begins at a page's border, as reads past the cache want it.
        self._memory = mmap.mmap(-1, MAX_HEADER_BYTES)

    def __enter__(self) -> "PageChecker":
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()

    def check(self, namespace: BlockKey, shard: str, file: str) -> Checked | None:
        """Read one file of a shard's directory whole; None for one that is being written, or gone.

        The result of a read that the pace's stop ended means nothing.
        """
        if file.startswith(TEMPORARY_PREFIX):
            return None
        path = os.path.join(shard, file)
        try:
            info = os.lstat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return Checked(path, None, 0, "unread", f"cannot be looked at: {error.strerror}")
        nbytes = physical_bytes(info)
        name = parse_name(file)
        foreign = _foreign(info)
        if name is None:
            foreign = foreign or "does not have a page's name"
        elif not file.startswith(os.path.basename(shard)):
            foreign = foreign or "lies in the shard of other keys"
        if name is None or foreign:
            return Checked(path, None, nbytes, "foreign", foreign)
        page = StoredPage(namespace, name, nbytes)
        try:
            found = self.trouble_of(path, page)
        except FileNotFoundError:
            return None
        verdict, trouble = found or ("good", None)
        return Checked(path, page, nbytes, verdict, trouble)

    def trouble_of(self, path: str, page: StoredPage) -> tuple[Verdict, str] | None:
        """Return what is wrong with a page's file, whatever its name; None if nothing is. Raises
        FileNotFoundError for one that is gone, or is gone by now and was not right."""
        try:
            fd = self._fs.open(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            return "unread", f"cannot be opened: {error.strerror}"
        try:
            found = self._trouble(fd, page)
            if found is not None and not self._fs.is_at(fd, path):
                raise FileNotFoundError(errno.ENOENT, "gone meanwhile", path)
        finally:
            self._fs.close(fd)
        return found

    def _trouble(self, fd: int, page: StoredPage) -> tuple[Verdict, str] | None:
        try:
            self._read(fd, page)
        except UndecodablePage as error:
            return "unread", f"a later version wrote it: {error}"
        except PageError as error:
            return "damaged", str(error)
        except OSError as error:
            return "unread", f"cannot be read: {error.strerror}"
        return None

    def _read(self, fd: int, page: StoredPage) -> None:
        """Read an open file and raise PageError for what is wrong with it, OSError for the disk."""
        size = self._fs.size(fd)
        past_cache = pass_cache_by(fd)
        try:
            with contextlib.closing(self._pieces(fd)) as pieces:
                first = next(pieces, memoryview(b""))
                begin = header_length(bytes(first[:8]))
                header = decode_header(bytes(first[:begin]))
                if not describes(header.meta, page.namespace, page.name):
                    raise CorruptPage("the header describes another page than the name does")
                expected = begin + header.meta.nbytes
                if size != expected:
                    what = "cut off" if size < expected else "too long"
                    raise CorruptPage(f"{what}: {size} bytes, and the header says {expected}")
                digest = PayloadDigest()
                digest.update(first[begin:])
                for piece in pieces:
                    digest.update(piece)
                if digest.text() != header.checksum:
                    raise CorruptPage("the data does not match its checksum")
        finally:
            if not past_cache:
                drop_cached(fd)

    def _pieces(self, fd: int) -> Generator[memoryview, None, None]:
        """Yield a file's bytes in pieces, each valid until the next; at its pace."""
        at = 0
        with memoryview(self._memory) as buffer:
            while came := read_some(fd, at, buffer):
                with buffer[:came] as piece:
                    yield piece
                at += came
                # A read ends between two pages of memory at the end of a file alone.
                if not self._pace.wait(came) or came % mmap.PAGESIZE:
                    return


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
    """Let the system's file cache have nothing of a descriptor's file; raises nothing."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def read_some(fd: int, offset: int, buffer: memoryview) -> int:
    """Read into a buffer what one call to the system gives; return how many bytes came."""
    return os.preadv(fd, [buffer], offset)


def _foreign(info: os.stat_result, is_kind: Callable[[int], bool] = stat.S_ISREG) -> str:
    """Return in words why a store passes something over, "" if it does not."""
    if not is_kind(info.st_mode):
        return "is no directory" if is_kind is stat.S_ISDIR else "is no file"
    if is_private(info):
        return ""
    if info.st_uid != os.geteuid():
        return f"belongs to user {info.st_uid}"
    return f"may be changed by other users (mode {stat.S_IMODE(info.st_mode):04o})"


def remove_damaged(cold_dir: Path, pages: Iterable[StoredPage], fs: FileSystem = DISK) -> int:
    """Delete those pages whose files are damaged still, and none that was written anew meanwhile;
    return how many. Nobody waits while they are read. Otherwise as `remove_pages`."""
    removed = 0
    with PageChecker(fs) as checker:
        for page in pages:
            path = page_path(cold_dir, page.namespace, page.name)
            with contextlib.suppress(FileNotFoundError), fs.reading(path) as fd:
                found = checker.trouble_of(path, page)
                if found is not None and found[0] == "damaged":
                    removed += remove_opened(cold_dir, page, fd, fs)
    return removed
