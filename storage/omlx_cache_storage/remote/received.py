"""A page that came from a remote store: checked, then put where it belongs, in one pass if it can
be."""

import hmac
from collections.abc import Iterator, Sequence

from omlx_cache_storage.errors import CorruptPage, ForeignPage
from omlx_cache_storage.format.header import (
    LENGTH_BYTES,
    PayloadDigest,
    decode_header,
    header_length,
)
from omlx_cache_storage.format.wrapping import is_wrapped, unwrap_payload, unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Buffer, PageId, PageMeta
from omlx_cache_storage.remote.envelope import (
    TAGGED_BYTES,
    WIRE_BYTES,
    decrypt,
    read_descriptor,
)
from omlx_cache_storage.remote.keys import RemoteKeys


class ReceivedPage:
    """A received value whose envelope and header were checked; `read_into` checks the rest.

    Raises PageError in the constructor for what is not the page that was asked for. `parts` are the
    value's bytes in order, cut anywhere; they are not changed, and held as long as this is. An
    encrypted body is decrypted at once, into memory of its own.
    """

    def __init__(
        self,
        name: str,
        namespace: BlockKey,
        page: PageId,
        parts: Sequence[Buffer],
        keys: RemoteKeys,
    ) -> None:
        self._keys = keys
        value = _Bytes(parts)
        self.described = described = read_descriptor(name, value.copy(0, WIRE_BYTES), keys)
        if value.nbytes != described.wire_bytes:
            raise CorruptPage(
                f"{value.nbytes} bytes came of a value of {described.wire_bytes} bytes"
            )
        self._file, self._start = value, WIRE_BYTES
        if described.encrypted:
            body = value.copy(WIRE_BYTES, described.body_bytes)
            self._file, self._start = _Bytes([decrypt(name, described, body, keys)]), 0
        prefix = self._file.copy(self._start, LENGTH_BYTES)
        self._raw = self._file.copy(self._start, header_length(prefix))
        header = decode_header(self._raw)
        self._stored, self._checksum = header.meta, header.checksum
        self.meta: PageMeta = unwrapped(header.meta)
        meta = self.meta
        if self._file.nbytes - self._start - len(self._raw) != self._stored.nbytes:
            raise CorruptPage("the page file's length is not what its header says")
        numbers = (meta.position, meta.held, meta.nbytes)
        if (meta.namespace, meta.id) != (namespace, page) or numbers != described[1:4]:
            raise ForeignPage("the value holds another page than its name and envelope say")

    def read_into(self, pieces: Sequence[Buffer]) -> None:
        """Fill the pieces, payload order, with the whole payload and verify it; raises CorruptPage
        or UndecodablePage, and their content is then undefined."""
        views = [_flat(piece) for piece in pieces]
        if sum(view.nbytes for view in views) != self.meta.nbytes:
            raise ForeignPage("the page is of another size than the memory that it is read into")
        if is_wrapped(self._stored):
            frame = bytearray(self._stored.nbytes)
            self._fill([memoryview(frame)])
            _scatter(memoryview(unwrap_payload(frame, self.meta.nbytes)), views)
            return
        self._fill(views)

    def _fill(self, pieces: Sequence[memoryview]) -> None:
        """Copy the payload and digest what was copied, while it is in a core's cache."""
        authenticates = self._keys.authenticates and not self.described.encrypted
        tag = self._keys.digest() if authenticates else None
        if tag is not None:
            tag.update(self._raw)
        digest = PayloadDigest()
        offset = self._start + len(self._raw)
        for piece in pieces:
            for begin in range(0, piece.nbytes, TAGGED_BYTES):
                target = piece[begin : begin + TAGGED_BYTES]
                for source in self._file.between(offset, offset + target.nbytes):
                    target[: source.nbytes] = source
                    # What was copied, not what came: nobody can change it in between.
                    digest.update(target[: source.nbytes])
                    if tag is not None:
                        tag.update(target[: source.nbytes])
                    offset += source.nbytes
                    target = target[source.nbytes :]
        if tag is not None and not hmac.compare_digest(tag.digest(), self.described.body_tag):
            raise CorruptPage("the page is not what its writer authenticated")
        if digest.text() != self._checksum:
            raise CorruptPage("the payload does not match its checksum")


class _Bytes:
    """Buffers that follow each other, addressed as one."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = [_flat(part) for part in parts]
        self.nbytes = sum(part.nbytes for part in self._parts)

    def between(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the stretches of [start, stop), which lies within."""
        for part in self._parts:
            if start < part.nbytes and stop > 0:
                yield part[max(0, start) : stop]
            start, stop = start - part.nbytes, stop - part.nbytes

    def copy(self, start: int, nbytes: int) -> bytes:
        """Return bytes from `start` on, as many as there are of `nbytes`."""
        return b"".join(self.between(start, start + nbytes))


def _flat(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _scatter(payload: memoryview, pieces: Sequence[memoryview]) -> None:
    start = 0
    for piece in pieces:
        piece[:] = payload[start : start + piece.nbytes]
        start += piece.nbytes
