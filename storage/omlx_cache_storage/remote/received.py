"""A page that came from a remote store: checked, then put where it belongs, in one pass if
possible."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from omlx_cache_storage.errors import CorruptPage, ForeignPage
from omlx_cache_storage.format.header import (
    LENGTH_BYTES,
    PayloadDigest,
    decode_header,
    header_length,
)
from omlx_cache_storage.format.packing import is_wrapped, unwrap_into, unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Buffer, PageId, PageInfo, flat
from omlx_cache_storage.remote.envelope import WIRE_BYTES, RemoteKeys, read_envelope

CHECKED_BYTES = 256 * 1024
"""Bytes copied and checked at a time: a core's own cache still holds them."""


class ReceivedPage:
    """A received value whose envelope and header were checked; `read_into` checks the payload,
    once.

    The constructor raises PageError for a value that is not the requested page. `parts` are the
    value's bytes in order, cut anywhere; they are not changed, and released as they are read. With
    a secret, `meta` is not authenticated until `read_into` returned: good for a plan. `was_read`
    says that it did, and all is right. With `asked` only so many first bytes were requested, and
    there is no `meta` when `head_bytes` are more.
    """

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
        self.was_read = False
        self._keys = keys
        self._parts = [view for part in parts if (view := flat(part)).nbytes]
        self._cipher: Any = None
        nbytes = sum(part.nbytes for part in self._parts)
        self.envelope = envelope = read_envelope(name, self._take(WIRE_BYTES), keys)
        if not asked and nbytes != envelope.wire_bytes:
            raise CorruptPage(f"{nbytes} bytes came of a value of {envelope.wire_bytes} bytes")
        if keys.authenticates:
            self._cipher = keys.cipher(name, envelope.nonce).decryptor()
            self._cipher.authenticate_additional_data(envelope.bound)
        prefix = self._take(LENGTH_BYTES)
        length = header_length(prefix)
        self.head_bytes = WIRE_BYTES + length
        if not asked or self.head_bytes <= asked:
            self._read_header(prefix + self._take(length - len(prefix)), namespace, page)

    def _read_header(self, raw: bytes, namespace: BlockKey, page: PageId) -> None:
        header = decode_header(raw)
        self._stored, self._checksum = header.meta, header.checksum
        self.meta = meta = unwrapped(header.meta)
        if self.envelope.body_bytes - len(raw) != self._stored.nbytes:
            raise CorruptPage("the page file's length is not what its header says")
        info = PageInfo(meta.position, meta.held, meta.nbytes, self.envelope.info.tier)
        if (meta.namespace, meta.id, info) != (namespace, page, self.envelope.info):
            raise ForeignPage("the value holds another page than its name and envelope say")

    def read_into(self, pieces: Sequence[Buffer]) -> None:
        """Fill the pieces, payload order, with the whole payload and verify it; raises CorruptPage
        or UndecodablePage, and their content is then undefined."""
        views = [flat(piece) for piece in pieces]
        if sum(view.nbytes for view in views) != self.meta.nbytes:
            raise ForeignPage("the page is of another size than the memory that it is read into")
        if is_wrapped(self._stored):
            frame = bytearray(self._stored.nbytes)
            self._fill([memoryview(frame)])
            unwrap_into(frame, self.meta.nbytes, views)
        else:
            self._fill(views)
        self.was_read = True

    def _fill(self, pieces: Sequence[memoryview]) -> None:
        """Copy the payload and digest the copy, while it is in a core's cache."""
        # Authenticated bytes are those of which the writer made the checksum.
        digest = None if self._cipher is not None else PayloadDigest()
        for piece in pieces:
            for begin in range(0, piece.nbytes, CHECKED_BYTES):
                target = piece[begin : begin + CHECKED_BYTES]
                self._copy(target)
                if digest is not None:
                    digest.update(target)
        if digest is None:
            try:
                self._cipher.finalize_with_tag(self.envelope.body_tag)
            except import_module("cryptography.exceptions").InvalidTag:
                raise CorruptPage("the page is not what its writer authenticated") from None
        elif digest.text() != self._checksum:
            raise CorruptPage("the payload does not match its checksum")

    def _take(self, nbytes: int) -> bytes:
        """Return the next bytes, fewer where the value ends."""
        found = bytearray(nbytes)
        return bytes(memoryview(found)[: self._copy(memoryview(found))])

    def _copy(self, target: memoryview) -> int:
        """Fill `target` with the next bytes, decrypted; return how many there were."""
        filled = 0
        while filled < target.nbytes and self._parts:
            source = self._parts[0][: target.nbytes - filled]
            part = target[filled : filled + source.nbytes]
            if self._cipher is not None and self._keys.encrypts:
                self._cipher.update_into(source, part)
            else:
                part[:] = source
                if self._cipher is not None:
                    # Not the received bytes: another thread could change them in between.
                    self._cipher.authenticate_additional_data(part)
            filled += source.nbytes
            left = self._parts.pop(0)[source.nbytes :]
            self._parts[:0] = [left] if left.nbytes else []
        return filled
