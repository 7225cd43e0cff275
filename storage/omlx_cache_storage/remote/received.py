"""A page that came from a remote store: checked, then put where it belongs, in one pass if it can
be."""

import time
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
from omlx_cache_storage.remote.envelope import WIRE_BYTES, opened, read_descriptor
from omlx_cache_storage.remote.keys import Body, RemoteKeys

CHECKED_BYTES = 256 * 1024
"""Copied and checked at a time: what a core's own cache still holds for whoever comes next."""


class ReceivedPage:
    """A received value whose envelope and header were checked; `read_into` checks the rest.

    Raises PageError in the constructor for what is not the page that was asked for. `parts` are the
    value's bytes in order, cut anywhere; they are not changed, and held as long as this is. With a
    secret, `meta` is what nobody has authenticated until `read_into` returned: good for a plan.
    `was_read` says that it did, and all is right; `seconds` is what it took. With `asked` only so
    many first bytes were asked for, and there is no `meta` when `head_bytes` are more.
    """

    meta: PageMeta

    def __init__(
        self,
        name: str,
        namespace: BlockKey,
        page: PageId,
        parts: Sequence[Buffer],
        keys: RemoteKeys,
        *,
        asked: int = 0,
    ) -> None:
        self._name, self._keys = name, keys
        self.was_read = False
        self.seconds = 0.0
        self._parts = [_flat(part) for part in parts]
        self.described = described = read_descriptor(
            name, b"".join(self._between(0, WIRE_BYTES)), keys
        )
        nbytes = sum(part.nbytes for part in self._parts)
        if not asked and nbytes != described.wire_bytes:
            raise CorruptPage(f"{nbytes} bytes came of a value of {described.wire_bytes} bytes")
        body = self._body()
        prefix = body.read(LENGTH_BYTES)
        length = header_length(prefix)
        self.head_bytes = WIRE_BYTES + length
        if not asked or self.head_bytes <= asked:
            self._read_header(prefix + body.read(length - len(prefix)), namespace, page)

    def _read_header(self, raw: bytes, namespace: BlockKey, page: PageId) -> None:
        self._raw = raw
        header = decode_header(raw)
        self._stored, self._checksum = header.meta, header.checksum
        self.meta = meta = unwrapped(header.meta)
        if self.described.body_bytes - len(raw) != self._stored.nbytes:
            raise CorruptPage("the page file's length is not what its header says")
        numbers = (meta.position, meta.held, meta.nbytes)
        if (meta.namespace, meta.id) != (namespace, page) or numbers != self.described[1:4]:
            raise ForeignPage("the value holds another page than its name and envelope say")

    def read_into(self, pieces: Sequence[Buffer]) -> None:
        """Fill the pieces, payload order, with the whole payload and verify it; raises CorruptPage
        or UndecodablePage, and their content is then undefined."""
        began = time.perf_counter()
        views = [_flat(piece) for piece in pieces]
        if sum(view.nbytes for view in views) != self.meta.nbytes:
            raise ForeignPage("the page is of another size than the memory that it is read into")
        if is_wrapped(self._stored):
            frame = bytearray(self._stored.nbytes)
            self._fill([memoryview(frame)])
            _scatter(memoryview(unwrap_payload(frame, self.meta.nbytes)), views)
        else:
            self._fill(views)
        self.was_read = True
        self.seconds = time.perf_counter() - began

    def _fill(self, pieces: Sequence[memoryview]) -> None:
        """Copy the payload and digest what was copied, while it is in a core's cache."""
        body = self._body()
        if body.read(len(self._raw)) != self._raw:
            raise CorruptPage("the page's header changed while it was read")
        # What is authenticated is what its writer made the checksum of.
        digest = None if self._keys.authenticates else PayloadDigest()
        for piece in pieces:
            for begin in range(0, piece.nbytes, CHECKED_BYTES):
                target = piece[begin : begin + CHECKED_BYTES]
                body.read_into(target)
                if digest is not None:
                    digest.update(target)
        body.end(self.described.body_tag)
        if digest is not None and digest.text() != self._checksum:
            raise CorruptPage("the payload does not match its checksum")

    def _body(self) -> Body:
        """Return the body, to be read from its beginning."""
        parts = list(self._between(WIRE_BYTES, self.described.wire_bytes))
        return opened(self._name, self.described, parts, self._keys)

    def _between(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the stretches of [start, stop) of the value."""
        for part in self._parts:
            if start < part.nbytes and stop > 0:
                yield part[max(0, start) : stop]
            start, stop = start - part.nbytes, stop - part.nbytes


def _flat(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _scatter(payload: memoryview, pieces: Sequence[memoryview]) -> None:
    start = 0
    for piece in pieces:
        piece[:] = payload[start : start + piece.nbytes]
        start += piece.nbytes
