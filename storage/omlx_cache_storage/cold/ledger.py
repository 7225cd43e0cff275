"""The ledger of a cold directory: a small file that says what changed in it, for all processes.

`ledger` is a header and a ring of records:

    header  64 bytes: magic, epoch, bytes of the ring, head, xxh64 of these; little-endian; then the
            directory's identity: 16 random bytes that stay
    ring    frames, one after the other: length, xxh32, record (msgpack, see `changes`)

The head counts all bytes ever appended; a record lies at its number modulo the ring's size. A
reader that is further behind than half the ring has lost the thread (the other half may be about to
be written over, before the head says so), and so has everybody when the epoch changes: the
directory itself is the truth, and is read again. Whoever changes the
directory holds a lock on the file meanwhile, which ends with its process. Nothing here is made
durable: what counts after a power cut is the directory.
"""

import contextlib
import errno
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import xxhash

from omlx_cache_storage.cold.disk import Descriptor, FileSystem, StrPath
from omlx_cache_storage.format.names import LEDGER_FILE

MAGIC = b"omlxldg1"
HEADER_BYTES = 64
IDENTITY_BYTES = 16
SMALLEST_BYTES = 16 * 1024
LARGEST_BYTES = 4 * 1024 * 1024
"""Bounds of the file: 60 records to be behind in a small directory, which is read again in no time,
15,000 in a large one."""
DISK_SHARE = 64
"""It takes one part in so many of what the disk has free, at most, or the smallest size."""
WAIT_SECONDS = 2.0
"""For so long a lock is waited for. Its holder changes a few names, and waits for nobody."""
HOLD_FILES = 64
HOLD_SECONDS = 0.02
"""Files, and seconds, of one hold at most: then peer processes get the lock."""
_LONGEST_PAUSE = 0.001
_HEADER = struct.Struct("<8sQQQ")
_CHECKED = struct.Struct("<8sQQQQ")
_FRAME = struct.Struct("<II")


class LedgerBusy(OSError):
    """Another process holds a directory for longer than anything takes that is done to it."""


def ledger_bytes(limit_bytes: int) -> int:
    """Return how large the ledger of a directory with a budget is."""
    small = min(limit_bytes // 256, 4 * SMALLEST_BYTES)
    return max(SMALLEST_BYTES, min(LARGEST_BYTES, max(small, limit_bytes // 1024) // 4096 * 4096))


class Ledger:
    """One reader's and writer's view of a directory's ledger. Any thread may call.

    `_mutex` is held by the thread that has the file locked, through the descriptor `_locked`, and
    `_depth` is how often, `_since` since when, `_deleted` how many files were allowed to go since;
    nobody here locks it before `_rests_until`. `_reading` guards the place up to which records were
    returned (`_epoch`, `_at`) and the header that was seen then. Methods raise OSError as the disk
    does, FileNotFoundError for a ledger that was removed or replaced.
    """

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._path = os.path.join(directory, LEDGER_FILE)
        self._fs = fs
        self._mutex = threading.RLock()
        self._depth = 0
        self._since = self._rests_until = 0.0
        self._deleted = 0
        self._reading = threading.Lock()
        self._open = Descriptor(-1)
        self.identity: str | None = None
        self._locked = -1
        self._seen = b""
        self._epoch = self._at = 0
        self._ring = 0

    @property
    def nbytes(self) -> int:
        """The size of the file, 0 for one that is not open."""
        return HEADER_BYTES + self._ring if self._ring else 0

    @property
    def is_open(self) -> bool:
        return self._open.fd >= 0

    @property
    def is_current(self) -> bool:
        """True when the file that is open is the directory's."""
        return self.is_open and self._fs.is_at(self._open.fd, self._path)

    def open(self, nbytes: int) -> None:
        """Open the file, make it of about `nbytes` where there is none, and go to its end."""
        self._fs.close(self._fs.open_shared(self._path))
        opened = self._opened()
        if not self._mutex.acquire(timeout=WAIT_SECONDS):
            raise _busy()
        try:
            self._replace(opened)
            with self.held(), self._reading:
                header = self._header()
                if header is None:
                    nbytes = nbytes if self._is_small(nbytes) else SMALLEST_BYTES
                    header = self._begin((nbytes - HEADER_BYTES) // 8 * 8)
                self._go_to(*header)
                self.identity = _identity(self._fs, self._open.fd)
                if self.identity is None:
                    raw = secrets.token_bytes(IDENTITY_BYTES)
                    self._fs.poke(self._locked, raw, _CHECKED.size)
                    self.identity = raw.hex()
        finally:
            self._mutex.release()

    def watch(self) -> None:
        """Go to the end of a file that cannot be written to; one that is missing stays so."""
        self.close()
        header = None
        with contextlib.suppress(FileNotFoundError):
            self._replace(self._opened())
            with self._reading:
                header = self._header()
                if header is not None:
                    self._go_to(*header)
                    self.identity = _identity(self._fs, self._open.fd)
        if header is None:
            self.close()

    def _opened(self) -> Descriptor:
        # Nothing stays open for writing: a disk is remounted read-only whoever follows here.
        return Descriptor(self._fs.open_shared(self._path, writing=False))

    def resize(self, nbytes: int) -> None:
        """Give the file about so many bytes, if it has others, and if the disk has room; everybody
        else reads the directory again then. The directory is held, and what was appended known."""
        ring = (nbytes - HEADER_BYTES) // 8 * 8
        with self._reading, contextlib.suppress(OSError):
            if ring < self._ring or (ring > self._ring and self._is_small(nbytes)):
                self._go_to(*self._begin(ring))

    def _is_small(self, nbytes: int) -> bool:
        """True for what a disk hardly notices: a full one has better uses for its bytes."""
        return nbytes * DISK_SHARE <= self._fs.free_bytes(os.path.dirname(self._path))

    def close(self) -> None:
        """Let the file go; any number of times. One that a thread has locked for longer goes when
        nobody has this object any more."""
        if self._mutex.acquire(timeout=WAIT_SECONDS):
            try:
                self._replace(Descriptor(-1))
            finally:
                self._mutex.release()

    def _replace(self, opened: Descriptor) -> None:
        """Have another file open. Nobody else has the directory held: the number of a descriptor
        that is closed may be another file's at once."""
        with self._reading:
            self._open.close()
            self._open = opened
            self._ring = 0

    @contextlib.contextmanager
    def held(self, seconds: float = WAIT_SECONDS) -> Iterator[None]:
        """Keep others from changing the directory; within a thread any number of times over.

        Waits for `seconds` at most; raises LedgerBusy then.
        """
        now = time.monotonic()
        deadline = now + seconds
        if now < self._rests_until:
            # Others ask every now and then only: who lets go and locks at once keeps them out.
            time.sleep(_LONGEST_PAUSE)
        if not self._mutex.acquire(timeout=max(0.0, seconds)):
            raise _busy()
        try:
            if not self._depth:
                self._lock(deadline)
                self._since, self._deleted, self._rests_until = time.monotonic(), 0, 0.0
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    if self._deleted and not self._files_left():
                        self._rests_until = time.monotonic() + _LONGEST_PAUSE
                    self._unlock()
        finally:
            self._mutex.release()

    def allow(self, files: int) -> int:
        """Return how many of so many files may be deleted next, in this hold of the directory: one
        at first, then as many as before that. 0: the rest has to wait for the next hold."""
        allowed = min(files, max(1, self._deleted), self._files_left() if self._deleted else 1)
        self._deleted += allowed
        return allowed

    def _files_left(self) -> int:
        is_over = time.monotonic() - self._since >= HOLD_SECONDS
        return 0 if is_over else HOLD_FILES - self._deleted

    def _lock(self, deadline: float) -> None:
        if not self.is_current:
            raise FileNotFoundError(errno.ENOENT, "the ledger was removed or replaced", self._path)
        # A descriptor of its own: one that a fork left would share its locks.
        self._locked = self._fs.open_shared(self._path)
        try:
            pause = 0.00002
            while not self._fs.try_lock(self._locked):
                if time.monotonic() >= deadline:
                    raise _busy()
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            if not self.is_current or not self._fs.is_at(self._locked, self._path):
                raise FileNotFoundError(
                    errno.ENOENT, "the ledger was removed or replaced", self._path
                )
        except BaseException:
            self._unlock()
            raise

    def _unlock(self) -> None:
        fd, self._locked = self._locked, -1
        try:
            # A process that was forked meanwhile has it open, too.
            self._fs.unlock(fd)
        finally:
            self._fs.close(fd)

    @property
    def is_gone(self) -> bool:
        """True when the file was deleted: what is changed now nobody says there."""
        return self.is_open and not self._fs.has_name(self._open.fd)

    def changed(self) -> bool:
        """True when there are records that were not returned: one small read."""
        raw = self._fs.peek(self._open.fd, _CHECKED.size, 0)
        return raw != self._seen

    def news(self) -> list[bytes] | None:
        """Return the records since the last call, in order; None when some are lost, and the
        directory has to be read again."""
        with self._reading:
            return self._news() if self.changed() else []

    def _news(self) -> list[bytes] | None:
        header = self._header()
        if header is None or header[0] != self._epoch:
            return None
        head = header[1]
        if not self._at <= head <= self._at + self._ring // 2:
            return None
        data = self._read(self._at, head - self._at)
        records = _frames(data)
        if records is None or len(data) < head - self._at:
            # Somebody writes over what was read, and the header does not say so yet; or cut it off.
            return None
        again = self._header()
        if again is None or again[0] != self._epoch or again[1] > self._at + self._ring // 2:
            return None
        self._go_to(*header)
        return records

    def skip(self) -> None:
        """Go to the end: what was appended until now is known otherwise, or will be."""
        with self._reading:
            header = self._header()
            if header is None:
                raise OSError(errno.EIO, "the ledger is damaged", self._path)
            self._go_to(*header)

    def append(self, records: list[bytes]) -> None:
        """Tell everybody else. The directory is held; a reader that has not followed to the end is
        told of its own changes, too."""
        data = b"".join(_FRAME.pack(len(r), xxhash.xxh32_intdigest(r)) + r for r in records)
        with self._reading:
            followed = not self.changed()
            header = (self._epoch, self._at) if followed else self._header()
            if header is None:
                self._go_to(*self._begin(self._ring))
                return
            epoch, head = header
            if len(data) > self._ring // 2:
                # More than anybody could read in time: everybody reads the directory instead.
                header = self._begin(self._ring)
            else:
                at = head % self._ring
                first = data[: self._ring - at]
                self._fs.poke(self._locked, first, HEADER_BYTES + at)
                if len(first) < len(data):
                    self._fs.poke(self._locked, data[len(first) :], HEADER_BYTES)
                header = epoch, head + len(data)
                self._set_header(*header)
            if followed:
                self._go_to(*header)

    def _go_to(self, epoch: int, head: int) -> None:
        self._epoch, self._at = epoch, head
        self._seen = self._packed(epoch, head)

    def _begin(self, ring: int) -> tuple[int, int]:
        """Make the ring empty, for everybody."""
        header = secrets.randbits(63), 0
        if ring != self._ring:
            # What is told of a page must not need room that a full disk lacks.
            self._fs.resize(self._locked, self.nbytes, HEADER_BYTES + ring)
            self._ring = ring
        self._set_header(*header)
        return header

    def _header(self) -> tuple[int, int] | None:
        """Return the epoch and the head, None for a file that is no ledger, or not yet."""
        for _ in range(3):
            raw = self._fs.peek(self._open.fd, _CHECKED.size, 0)
            if len(raw) == _CHECKED.size:
                magic, epoch, ring, head, check = _CHECKED.unpack(raw)
                if check == xxhash.xxh64_intdigest(raw[: _HEADER.size]) and magic == MAGIC:
                    self._ring = ring
                    return epoch, head
        return None

    def _packed(self, epoch: int, head: int) -> bytes:
        raw = _HEADER.pack(MAGIC, epoch, self._ring, head)
        return raw + struct.pack("<Q", xxhash.xxh64_intdigest(raw))

    def _set_header(self, epoch: int, head: int) -> None:
        self._fs.poke(self._locked, self._packed(epoch, head), 0)

    def _read(self, start: int, length: int) -> bytes:
        at = start % self._ring
        first = self._fs.peek(self._open.fd, min(length, self._ring - at), HEADER_BYTES + at)
        if len(first) == length:
            return first
        return first + self._fs.peek(self._open.fd, length - len(first), HEADER_BYTES)


def read_identity(directory: StrPath, fs: FileSystem) -> str | None:
    """Return what tells a directory from every other one, wherever it is mounted; None where no
    store has used it, or only earlier versions. Raises OSError."""
    try:
        fd = fs.open_shared(os.path.join(directory, LEDGER_FILE), writing=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _identity(fs, fd)
    finally:
        fs.close(fd)


def _identity(fs: FileSystem, fd: int) -> str | None:
    raw = fs.peek(fd, IDENTITY_BYTES, _CHECKED.size)
    return raw.hex() if len(raw) == IDENTITY_BYTES and any(raw) else None


def _busy() -> LedgerBusy:
    return LedgerBusy(errno.EAGAIN, "another process holds the directory for too long")


def _frames(data: bytes) -> list[bytes] | None:
    """Return the records of a part of the ring, None when it is torn."""
    records, at = [], 0
    while at < len(data):
        if at + _FRAME.size > len(data):
            return None
        length, check = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        record = data[at : at + length]
        if len(record) != length or xxhash.xxh32_intdigest(record) != check:
            return None
        records.append(record)
        at += length
    return records
