"""Reading one page file: its header, and its payload into the caller's buffers, verified."""

import os
import time
from collections.abc import Iterator, Sequence

from omlx_cache_storage.cold.disk import DISK, FileSystem, StrPath
from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageUnreadable
from omlx_cache_storage.format.header import (
    ALIGNMENT,
    CHECKSUM,
    Header,
    decode_header,
    header_length,
    payload_digest,
)
from omlx_cache_storage.format.names import StoredPage, name_of
from omlx_cache_storage.format.packing import PACKING, unwrap_into, unwrapped
from omlx_cache_storage.page import Buffer, Page

CHECKED_BYTES = 512 * 1024
"""Bytes read and then checked at a time: a core's own cache still holds them."""


class PageReader:
    """The open file of a page, whose header agrees with its name; valid inside `ColdTier.reading`.
    `was_read`: the whole payload came, and is right; `seconds` is what that took. Raises PageError,
    OSError."""

    def __init__(self, fs: FileSystem, fd: int, path: StrPath, page: StoredPage) -> None:
        self._fs = fs
        self._fd = fd
        self._file = os.path.basename(path)
        self._header = read_header_at(fd, fs)
        self.meta = meta = self._header.meta
        if meta.codec.startswith(PACKING):
            self.meta = unwrapped(meta)
        self.was_read = False
        self.seconds = 0.0
        size, said = fs.status(fd).st_size, self._header.data_offset + meta.nbytes
        if size != said:
            raise CorruptPage(f"{self._file} has {size} bytes, its header says {said}")
        if (self.meta.namespace, name_of(self.meta)) != page[:2]:
            raise ForeignPage(f"{self._file} holds another page than its name says")

    def read_into(self, pieces: Sequence[Buffer]) -> None:
        """Fill the pieces, payload order, with the whole payload and verify it.

        Raises CorruptPage or UndecodablePage; the pieces' content is then undefined. Blocks on the
        disk. A wrapped page takes its own size in memory while it is unwrapped.
        """
        began = time.perf_counter()
        if self.meta is not self._header.meta:
            unwrap_into(self.read_stored().payload, self.meta.nbytes, pieces)
        else:
            self._fill(pieces)
        self.seconds = time.perf_counter() - began

    def read_stored(self) -> Page:
        """Return the page as it is in its file, packed if it is, verified; raises CorruptPage."""
        payload = bytearray(self._header.meta.nbytes)
        self._fill([payload])
        return Page(self._header.meta, payload)

    def _fill(self, pieces: Sequence[Buffer]) -> None:
        came = 0
        digest = payload_digest()
        for batch, nbytes in _batches(pieces):
            read = self._fs.read_into(self._fd, self._header.data_offset + came, batch)
            came += read
            if read != nbytes:
                break
            for piece in batch:
                digest.update(piece)
        if came != self._header.meta.nbytes:
            raise CorruptPage(f"{self._file}: {came} of {self._header.meta.nbytes} payload bytes")
        if CHECKSUM + digest.hexdigest() != self._header.checksum:
            raise CorruptPage(f"{self._file}: the payload does not match its checksum")
        self.was_read = True


def _batches(pieces: Sequence[Buffer]) -> Iterator[tuple[list[memoryview], int]]:
    batch: list[memoryview] = []
    total = 0
    for piece in pieces:
        view = memoryview(piece)
        if view.nbytes > CHECKED_BYTES:
            view = view.cast("B")
            while view.nbytes > CHECKED_BYTES - total:
                yield [*batch, view[: CHECKED_BYTES - total]], CHECKED_BYTES
                view, batch, total = view[CHECKED_BYTES - total :], [], 0
        batch.append(view)
        total += view.nbytes
        if total >= CHECKED_BYTES:
            yield batch, total
            batch, total = [], 0
    if batch:
        yield batch, total


def read_header(path: StrPath, fs: FileSystem = DISK) -> Header:
    try:
        with fs.reading(path) as fd:
            return read_header_at(fd, fs)
    except OSError as error:
        raise PageUnreadable(f"{os.path.basename(path)}: {error}") from error


def read_header_at(fd: int, fs: FileSystem) -> Header:
    raw = fs.read(fd, ALIGNMENT, 0)
    total = header_length(raw)
    if total > len(raw):
        raw += fs.read(fd, total - len(raw), len(raw))
    return decode_header(raw)
