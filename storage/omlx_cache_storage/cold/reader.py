"""Reading one page file into buffers that the caller owns, verified."""

from collections.abc import Sequence
from pathlib import Path

from omlx_cache_storage.cold.catalog import read_header_at
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.format.header import PayloadDigest
from omlx_cache_storage.format.wrapping import is_wrapped, unwrap_payload, unwrapped
from omlx_cache_storage.page import Buffer


class PageReader:
    """An open page file whose header was checked; valid inside `ColdTier.reading`."""

    def __init__(self, fs: FileSystem, fd: int, path: Path) -> None:
        self._fs = fs
        self._fd = fd
        self._path = path
        header = read_header_at(fd, fs)
        self._stored = header.meta
        self.meta = unwrapped(header.meta)
        self._checksum = header.checksum
        self._offset = header.data_offset
        size = fs.size(fd)
        if size != self._offset + self._stored.nbytes:
            raise CorruptPage(
                f"{path.name} has {size} bytes, its header says "
                f"{self._offset + self._stored.nbytes}"
            )

    def read_into(self, pieces: Sequence[Buffer]) -> None:
        """Fill the pieces, payload order, with the whole payload and verify it.

        Raises CorruptPage or UndecodablePage; the pieces' content is then undefined. Blocks on the
        disk. A wrapped page takes its own size in memory while it is unwrapped.
        """
        if not is_wrapped(self._stored):
            self._fill(pieces)
            return
        frame = bytearray(self._stored.nbytes)
        self._fill([frame])
        payload = memoryview(unwrap_payload(frame, self.meta.nbytes))
        start = 0
        for piece in pieces:
            view = memoryview(piece)
            if view.nbytes:
                view.cast("B")[:] = payload[start : start + view.nbytes]
            start += view.nbytes

    def _fill(self, pieces: Sequence[Buffer]) -> None:
        came = self._fs.read_into(self._fd, self._offset, pieces)
        if came != self._stored.nbytes:
            raise CorruptPage(f"{self._path.name}: {came} of {self._stored.nbytes} payload bytes")
        digest = PayloadDigest()
        for piece in pieces:
            digest.update(piece)
        if digest.text() != self._checksum:
            raise CorruptPage(f"{self._path.name}: the payload does not match its checksum")
