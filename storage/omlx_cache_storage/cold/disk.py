"""Every touch of the file system, in one narrow class that a test can make slow, full or torn, and
the replacing of a file by a temporary one.

Methods raise OSError as the system does; none of them takes a lock. A long operation calls
`note_answer` each time that the disk has answered. Names of temporary files tell their writer, so
that leftovers are known as such.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import stat
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from omlx_cache_storage.format.names import ENTRY_BYTES, TEMPORARY_PREFIX
from omlx_cache_storage.io_threads import note_answer
from omlx_cache_storage.page import Buffer, flat

StrPath = str | os.PathLike[str]
Doom = Callable[[str, int], None]
"""Takes a temporary file that cannot be deleted, and the bytes that it may have."""
Durability = Literal["none", "fsync", "full"]

IOV_LIMIT = 1024
WRITE_LIMIT = 8 << 20
"""Bytes of one write: each shows that a slow disk makes progress. macOS refuses 2 GiB."""
SMALL_FILE_BYTES = 4096
"""Bytes that a directory or a document takes."""
SPARE_FILES = 1024
LOCK_SECONDS = 0.2
LOCK_PAUSE_SECONDS = 0.001
BLANK_BYTES = 1 << 16
UNCOUNTED_BYTES = 1 << 30
_F_FULLFSYNC = 51
"""macOS's request to flush the drive's own cache as well; `fcntl` lacks the name elsewhere."""
WRITER_TOKEN = secrets.token_hex(4)
"""Of this process: after a restart in a container a dead one had this very pid."""
_numbers = itertools.count()


def is_private(info: os.stat_result) -> bool:
    """True for a file or directory that is this user's and that no other user may change."""
    return info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


class Descriptor:
    """An open file, closed when its last reference ends. With `locked` it is closed in forked
    children as well, so that a lock on it ends with this process."""

    def __init__(self, fd: int, *, locked: bool = False) -> None:
        self.fd = fd
        self._finalizer = weakref.finalize(self, os.close, fd) if fd >= 0 else None
        if locked:
            _locked.add(self)
        if self._finalizer is not None:
            # Pending pages are written when the interpreter ends, and need the file until then.
            self._finalizer.atexit = False

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self.fd = -1


_locked: "weakref.WeakSet[Descriptor]" = weakref.WeakSet()


def _close_locked() -> None:
    for descriptor in list(_locked):
        descriptor.close()


os.register_at_fork(after_in_child=_close_locked)


class FileSystem:
    """The real file system."""

    exists = staticmethod(os.path.lexists)
    peek = staticmethod(os.pread)
    publish = staticmethod(os.rename)
    close = staticmethod(os.close)
    status = staticmethod(os.fstat)

    def make_directory(self, path: StrPath) -> bool:
        """Create a directory with mode 0700; True when it is new."""
        if os.path.isdir(path):
            return False
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return False
        return True

    def own_file(
        self, path: StrPath, is_kind: Callable[[int], bool] = stat.S_ISREG
    ) -> os.stat_result | None:
        """Return the status of a file of a kind, no link, that is this user's and that others
        cannot change; None for anything else."""
        try:
            info = os.lstat(path)
        except OSError:
            return None
        return info if is_kind(info.st_mode) and is_private(info) else None

    def remove_directory(self, path: StrPath) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def identity(self, path: StrPath) -> tuple[int, int, bool]:
        """Return what tells a directory from another one that took its name, and from itself when
        it is opened to the writes of others."""
        info = os.stat(path)
        return info.st_dev, info.st_ino, is_private(info)

    def mount_point(self, path: StrPath) -> str:
        here = os.path.realpath(path)
        while not os.path.ismount(here):
            here = os.path.dirname(here)
        return here

    def remove_foreign(self, path: StrPath) -> None:
        with contextlib.suppress(FileNotFoundError):
            info = os.lstat(path)
            if stat.S_ISREG(info.st_mode) and not is_private(info):
                os.unlink(path)

    def open_directory(self, path: StrPath) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)

    def lock(self, fd: int, *, shared: bool = False, deadline: float = 0.0) -> bool:
        """Lock a descriptor's file at once, or by a deadline of the monotonic clock; False when it
        is too late. The lock ends with the descriptor, in whichever process it is open. Raises
        OSError where files cannot be locked."""
        how, pause = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, LOCK_PAUSE_SECONDS / 64
        while True:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
            time.sleep(pause)
            pause = min(2 * pause, LOCK_PAUSE_SECONDS)

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    def is_at(self, fd: int, path: StrPath) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(path))
        except FileNotFoundError:
            return False

    def poke(self, fd: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            came = os.pwrite(fd, view, offset)
            view, offset = view[came:], offset + came

    def resize(self, fd: int, before: int, nbytes: int) -> None:
        """Give a file that processes share another size, without a hole: later writes there need no
        room. Raises OSError, and leaves the size, where the disk has none."""
        try:
            for at in range(before, nbytes, BLANK_BYTES):
                self.poke(fd, bytes(min(BLANK_BYTES, nbytes - at)), at)
        except OSError:
            os.ftruncate(fd, before)
            raise
        os.ftruncate(fd, nbytes)

    def reserve(self, path: StrPath, nbytes: int) -> int:
        """Make a new file of mode 0600 and of its final size, without bytes yet, and return its
        descriptor. While that is open, peer processes see that the file is being written."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # A process that asks whether the file is being written locks it for a moment.
            if not self.lock(fd, deadline=time.monotonic() + LOCK_SECONDS):
                raise BlockingIOError(errno.EAGAIN, "locked by another process", str(path))
            os.ftruncate(fd, nbytes)
        except BaseException:
            os.close(fd)
            self.remove(path)
            raise
        return fd

    def is_being_written(self, path: StrPath) -> bool:
        """True for a file whose writer has it open since `reserve`; it may be this process."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            # When the state is unknown, assume that the file is in use.
            return error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO)
        try:
            return not self.lock(fd, shared=True)
        except OSError:
            return True
        finally:
            os.close(fd)

    def write(self, path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        """Write a file of mode 0600, new or reserved, and return its physical bytes."""
        # Without O_NONBLOCK the opening of a pipe under that name waits for a reader, for ever.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.closing(Descriptor(os.open(path, flags, 0o600))) as file:
            for piece in pieces:
                view = flat(piece)
                while view:
                    view = view[os.write(file.fd, view[:WRITE_LIMIT]) :]
                    note_answer()
            self.sync(file.fd, durability)
            return physical_bytes(os.fstat(file.fd))

    def sync(self, fd: int, durability: Durability) -> None:
        if durability == "full" and hasattr(fcntl, "F_FULLFSYNC"):
            fcntl.fcntl(fd, _F_FULLFSYNC)
        elif durability != "none":
            os.fsync(fd)

    def sync_directory(self, path: StrPath, durability: Durability) -> None:
        if durability != "none":
            with contextlib.closing(Descriptor(self.open_directory(path))) as directory:
                os.fsync(directory.fd)

    def open(self, path: StrPath, *, writing: bool = False) -> int:
        """Open a regular file of this user's and return the descriptor: to read it, or to write a
        small one that processes share, made with mode 0600 if it is missing. Never waits for a
        pipe.

        Raises FileNotFoundError when something else has the name: a link, a pipe, a directory,
        another user's file, or one that others may write to.
        """
        access = os.O_RDWR | os.O_CREAT if writing else os.O_RDONLY
        try:
            fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            # A link is ELOOP; a socket, or a device without a driver, is ENXIO.
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EOPNOTSUPP):
                raise _not_a_file(path) from error
            raise
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or not is_private(info):
            os.close(fd)
            raise _not_a_file(path)
        return fd

    @contextlib.contextmanager
    def reading(self, path: StrPath) -> Iterator[int]:
        fd = self.open(path)
        try:
            yield fd
        finally:
            self.close(fd)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        raw = os.pread(fd, length, offset)
        note_answer()
        return raw

    def read_into(self, fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
        views = list(map(flat, buffers))
        total = 0
        while views and (came := os.preadv(fd, views[:IOV_LIMIT], offset + total)):
            total += came
            note_answer()
            filled = 0
            while filled < len(views) and came >= views[filled].nbytes:
                came -= views[filled].nbytes
                filled += 1
            views = views[filled:]
            if came:
                views[0] = views[0][came:]
        return total

    def set_times(self, path: StrPath, time_ns: int) -> None:
        os.utime(path, ns=(time_ns, time_ns))
        note_answer()

    def remove(self, path: StrPath) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        note_answer()

    def scan(self, path: StrPath) -> Iterator[os.DirEntry[str]]:
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(path) as entries,
        ):
            note_answer()
            yield from entries

    def free_bytes(self, path: StrPath) -> int:
        info = os.statvfs(path)
        return info.f_bavail * info.f_frsize

    def taken_bytes(self, path: StrPath) -> int:
        info = os.statvfs(path)
        return (info.f_blocks - info.f_bfree) * info.f_frsize

    def spare_files(self, path: StrPath) -> int | None:
        """Return how many files a writer may still make on the path's disk; None on a disk that
        does not count them. A few stay for others: `SPARE_FILES`, a hundredth of all at most."""
        info = os.statvfs(path)
        if not info.f_files:
            return None
        return info.f_favail - min(SPARE_FILES, info.f_files // 100)

    def is_writable(self, path: StrPath) -> bool:
        return not self.is_read_only(path) and os.access(path, os.W_OK)

    def is_read_only(self, path: StrPath) -> bool:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


DISK = FileSystem()


def physical_bytes(info: os.stat_result, uncounted: int = UNCOUNTED_BYTES) -> int:
    """Return a file's bytes on the disk, or its size if larger: some file systems count blocks only
    later. A hole of more than `uncounted` bytes is a hole."""
    taken = info.st_blocks * 512
    return max(taken, min(info.st_size, taken + uncounted))


def temporary_name(directory: str) -> str:
    """Return a path in a directory that no other writer has. Any thread may call."""
    writer = f"{os.getpid()}-{WRITER_TOKEN}"
    return os.path.join(directory, f"{TEMPORARY_PREFIX}{writer}-{next(_numbers)}")


def replace_file(
    path: StrPath,
    raw: bytes,
    fs: FileSystem,
    durability: Durability = "none",
    doom: Doom = lambda path, nbytes: None,
) -> None:
    """Give a small file another content, whole or not at all; raises OSError."""
    temporary = temporary_name(os.path.dirname(path))
    try:
        fs.write(temporary, [raw], durability)
        fs.publish(temporary, path)
    except BaseException:
        if not abandon(temporary, fs):
            doom(temporary, len(raw) + SMALL_FILE_BYTES + ENTRY_BYTES)
        raise


def abandon(temporary: str, fs: FileSystem) -> bool:
    """Delete a file under a temporary name; False when the disk does not. Raises nothing."""
    try:
        fs.remove(temporary)
    except OSError:
        # A disk mounted read-only also refuses to delete a missing file.
        return not fs.exists(temporary)
    return True


def remove_temporaries(
    directory: str, fs: FileSystem, is_useless: Callable[["os.DirEntry[str]"], bool]
) -> None:
    with contextlib.suppress(OSError):
        for entry in list(fs.scan(directory)):
            if entry.name.startswith(TEMPORARY_PREFIX) and is_useless(entry):
                fs.remove(entry.path)


def _not_a_file(path: StrPath) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "not a regular file of this user's", str(path))
