"""The ledger of a cold directory: a small file that says what changed in it, for all processes.
`docs/format.md` has it byte by byte.

The head counts all bytes ever appended; a record lies at its number modulo the ring's size. A
reader that is behind by more than half the ring has lost the thread: the other half may be
overwritten before the head says so. A change of the epoch does the same to every reader. Then the
directory itself is the truth, and is read again. A process that changes the directory holds a lock
on the file, which ends with that process. Nothing here is made durable: after a power cut the
directory counts.
"""

import contextlib
import errno
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

import xxhash

from omlx_cache_storage.cold.disk import LOCK_PAUSE_SECONDS, Descriptor, FileSystem, StrPath
from omlx_cache_storage.cold.ledger_records import Change, decode, encode
from omlx_cache_storage.format.names import LEDGER_FILE

MAGIC = b"omlxldg1"
HEADER_BYTES = 64
IDENTITY_BYTES = 16
SMALLEST_BYTES = 16 * 1024
LARGEST_BYTES = 4 * 1024 * 1024
"""Bounds of the file: 60 records to be behind in a small directory, which is read again in no time,
15,000 in a large one."""
DISK_SHARE = 64
"""It takes at most 1/64 of the disk's free space, or the smallest size."""
WAIT_SECONDS = 2.0
"""The longest wait for a lock. Its holder changes a few names, and waits for no other process."""
HOLD_FILES = 64
HOLD_SECONDS = 0.02
"""Files, and seconds, of one hold at most: then peer processes get the lock."""
_HEADER = struct.Struct("<8sQQQ")
_CHECK = struct.Struct("<Q")
_IDENTITY_AT = _HEADER.size + _CHECK.size
_FRAME = struct.Struct("<II")


class LedgerBusy(OSError):
    """Another process holds a directory for longer than anything takes that is done to it."""


class _RingHead(NamedTuple):
    epoch: int
    ring: int
    head: int

    def pack(self) -> bytes:
        raw = _HEADER.pack(MAGIC, *self)
        return raw + _CHECK.pack(xxhash.xxh64_intdigest(raw))


def ledger_bytes(limit_bytes: int) -> int:
    small = min(limit_bytes // 256, 4 * SMALLEST_BYTES)
    return max(SMALLEST_BYTES, min(LARGEST_BYTES, max(small, limit_bytes // 1024) // 4096 * 4096))


class Ledger:
    """One reader's and writer's view of a directory's ledger. Any thread may call.

    The thread that has the file locked, through the descriptor `_locked` (else -1), holds `_mutex`:
    since `_since`, with `_deleted` deletions allowed since then. No thread of this process locks
    the file at once before `_rests_until`. `_reading` guards `_at`, the header up to which changes
    were returned. Methods raise OSError, FileNotFoundError for a ledger that was removed or
    replaced.
    """

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._path = os.path.join(directory, LEDGER_FILE)
        self._fs = fs
        self._mutex = threading.RLock()
        self._since = self._rests_until = 0.0
        self._deleted = 0
        self._reading = threading.Lock()
        self._open = Descriptor(-1)
        self.is_open = False
        self._locked = -1
        self._at = _RingHead(0, 0, 0)

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self._at.ring if self._at.ring else 0

    @property
    def identity(self) -> str | None:
        """What tells the directory from every other one; None for a ledger that is not open, or
        that only earlier versions have used."""
        return _identity(self._fs, self._open.fd) if self.is_open else None

    @property
    def is_current(self) -> bool:
        return self.is_open and self._fs.is_at(self._open.fd, self._path)

    @property
    def is_gone(self) -> bool:
        """True when the file was deleted, as far as its disk says, and not renamed or unmounted: no
        later change is written there."""
        with contextlib.suppress(OSError):
            return self.is_open and not self._fs.status(self._open.fd).st_nlink
        return False

    def open(self, nbytes: int) -> None:
        """Open the file, make it of about `nbytes` where there is none, and go to its end."""
        self._fs.close(self._fs.open(self._path, writing=True))
        opened = self._opened()
        with self._alone(WAIT_SECONDS):
            self._replace(opened)
            with self.held(), self._reading:
                header = self._header()
                if header is None:
                    header = self._begin(nbytes if self._is_small(nbytes) else SMALLEST_BYTES)
                self._at = header
                if self.identity is None:
                    self._fs.poke(self._locked, secrets.token_bytes(IDENTITY_BYTES), _IDENTITY_AT)

    def watch(self) -> None:
        """Go to the end of a file that cannot be written to; one that is missing stays so."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self._replace(self._opened())
            header = self._header()
            if header is None:
                self.close()
            else:
                self._at = header

    def _opened(self) -> Descriptor:
        # No descriptor stays open for writing: it would keep a disk from being remounted read-only.
        return Descriptor(self._fs.open(self._path))

    def resize(self, nbytes: int) -> None:
        """Give the file so many bytes, if it has others, and if the disk has room; every peer
        process reads the directory again then. The directory is held, and all appended changes are
        known."""
        with self._reading, contextlib.suppress(OSError):
            if nbytes < self.nbytes or (nbytes > self.nbytes and self._is_small(nbytes)):
                self._at = self._begin(nbytes)

    def _is_small(self, nbytes: int) -> bool:
        return nbytes * DISK_SHARE <= self._fs.free_bytes(os.path.dirname(self._path))

    def close(self) -> None:
        """Close the file; any number of times. A file that a thread keeps locked for longer is
        closed with the last reference to this object."""
        with contextlib.suppress(LedgerBusy), self._alone(WAIT_SECONDS):
            self._replace(Descriptor(-1))

    def _replace(self, opened: Descriptor) -> None:
        """Open another file in place of this one. No other thread holds the directory: the number
        of a closed descriptor may be another file's at once."""
        with self._reading:
            self._open.close()
            self._open = opened
            self.is_open = opened.fd >= 0
            self._at = _RingHead(0, 0, 0)

    @contextlib.contextmanager
    def _alone(self, seconds: float) -> Iterator[None]:
        if not self._mutex.acquire(timeout=max(0.0, seconds)):
            raise _busy()
        try:
            yield
        finally:
            self._mutex.release()

    @contextlib.contextmanager
    def held(self, seconds: float = WAIT_SECONDS) -> Iterator[None]:
        """Keep others from changing the directory; within a thread any number of times over. Waits
        for `seconds` at most; raises LedgerBusy then."""
        now = time.monotonic()
        deadline = now + seconds
        if now < self._rests_until:
            # Peer processes try only now and then: a process that unlocks and locks at once keeps
            # them out.
            time.sleep(LOCK_PAUSE_SECONDS)
        with self._alone(seconds):
            if self._locked >= 0:
                yield
                return
            if not self.is_current:
                raise _gone(self._path)
            self._deleted, self._rests_until = 0, 0.0
            # A descriptor of its own: one that a fork left would share its locks.
            self._locked = self._fs.open(self._path, writing=True)
            try:
                if not self._fs.lock(self._locked, deadline=deadline):
                    raise _busy()
                if not self.is_current or not self._fs.is_at(self._locked, self._path):
                    raise _gone(self._path)
                self._since = time.monotonic()
                yield
            finally:
                if self._deleted and not self._files_left():
                    self._rests_until = time.monotonic() + LOCK_PAUSE_SECONDS
                fd, self._locked = self._locked, -1
                try:
                    # A process that was forked meanwhile has it open, too.
                    self._fs.unlock(fd)
                finally:
                    self._fs.close(fd)

    def allow(self, files: int) -> int:
        """Return how many of so many files may be deleted next, in this hold of the directory: one
        at first, then as many as before that. 0: the other files wait for the next hold."""
        allowed = min(files, max(1, self._deleted), self._files_left() if self._deleted else 1)
        self._deleted += allowed
        return allowed

    def _files_left(self) -> int:
        return 0 if time.monotonic() - self._since >= HOLD_SECONDS else HOLD_FILES - self._deleted

    def news(self) -> list[Change] | None:
        """Return the changes since the last call, in order; None when some are lost, or the file
        was deleted, and the directory has to be read again. One small read when nothing was
        changed."""
        with self._reading:
            # A file without a name learns nothing more.
            header = self._header() if self._fs.status(self._open.fd).st_nlink else None
            if header == self._at:
                return []
            if self._leads_to(header):
                spans = _spans(self._at.ring, self._at.head, header.head - self._at.head)
                data = b"".join([self._fs.peek(self._open.fd, size, at) for at, size in spans])
                # The bytes that were read may have been overwritten meanwhile, or cut off.
                records = _frames(data) if self._leads_to(self._header()) else None
                if records is not None and len(data) == header.head - self._at.head:
                    self._at = header
                    return [change for raw in records if (change := decode(raw)) is not None]
            return None

    def _leads_to(self, header: _RingHead | None) -> TypeGuard[_RingHead]:
        at = self._at
        return (
            header is not None
            and header.epoch == at.epoch
            and at.head <= header.head <= at.head + at.ring // 2
        )

    def skip(self) -> None:
        """Go to the end: the caller knows the changes until now otherwise, or will."""
        with self._reading:
            header = self._header()
            if header is None:
                raise OSError(errno.EIO, "the ledger is damaged", self._path)
            self._at = header

    def append(self, changes: Iterable[Change]) -> None:
        """Append changes for all peer processes; the directory is held. A reader that has not
        followed to the end reads its own changes, too."""
        frames: list[bytes] = []
        for raw in map(encode, changes):
            frames += _FRAME.pack(len(raw), xxhash.xxh32_intdigest(raw)), raw
        data = b"".join(frames)
        with self._reading:
            header = self._header()
            followed = header == self._at
            if header is None or len(data) > header.ring // 2:
                # No reader could read so much in time: all read the directory instead.
                after = self._begin(HEADER_BYTES + (header or self._at).ring)
            else:
                after = header._replace(head=header.head + len(data))
                for at, size in _spans(header.ring, header.head, len(data)):
                    self._fs.poke(self._locked, data[:size], at)
                    data = data[size:]
                self._fs.poke(self._locked, after.pack(), 0)
            if followed:
                self._at = after

    def _begin(self, nbytes: int) -> _RingHead:
        """Make the ring empty, for every process, in a file of so many bytes."""
        if nbytes != self.nbytes:
            # A record about a page must not need room that a full disk lacks.
            self._fs.resize(self._locked, self.nbytes, nbytes)
        header = _RingHead(secrets.randbits(63), nbytes - HEADER_BYTES, 0)
        self._fs.poke(self._locked, header.pack(), 0)
        return header

    def _header(self) -> _RingHead | None:
        for _ in range(3):
            raw = self._fs.peek(self._open.fd, _IDENTITY_AT, 0)
            if len(raw) == _IDENTITY_AT:
                header = _RingHead(*_HEADER.unpack_from(raw)[1:])
                if header.pack() == raw:
                    return header
        return None


def read_identity(directory: StrPath, fs: FileSystem) -> str | None:
    """Return what tells a directory from every other one, wherever it is mounted; None where only
    earlier versions, or no store, have used it. Raises OSError."""
    path = os.path.join(directory, LEDGER_FILE)
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        contextlib.closing(Descriptor(fs.open(path))) as opened,
    ):
        return _identity(fs, opened.fd)
    return None


def _identity(fs: FileSystem, fd: int) -> str | None:
    raw = fs.peek(fd, IDENTITY_BYTES, _IDENTITY_AT)
    return raw.hex() if len(raw) == IDENTITY_BYTES and any(raw) else None


def _busy() -> LedgerBusy:
    return LedgerBusy(errno.EAGAIN, "another process holds the directory for too long")


def _gone(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "the ledger was removed or replaced", path)


def _spans(ring: int, head: int, length: int) -> list[tuple[int, int]]:
    at = head % ring
    first = min(length, ring - at)
    around = [(HEADER_BYTES, length - first)] if first < length else []
    return [(HEADER_BYTES + at, first), *around]


def _frames(data: bytes) -> list[bytes] | None:
    records, at = [], 0
    while at + _FRAME.size <= len(data):
        length, check = _FRAME.unpack_from(data, at)
        at += _FRAME.size + length
        record = data[at - length : at]
        if xxhash.xxh32_intdigest(record) != check:
            return None
        records.append(record)
    return records if at == len(data) else None
