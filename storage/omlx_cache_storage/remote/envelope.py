"""The wire format: names of values, the envelope before a page file, the keys of a shared secret,
and a received page. `docs/format.md` has it byte by byte.

The name is in the head tag, and by it in everything: a value under another name is refused. With a
secret a body is authenticated by AES-256-GCM, under a key of its name's and a nonce of its own. It
is either data that is only authenticated, or the encrypted text. The envelope's first bytes and the
name go before it.
"""

import hashlib
import hmac
import os
import re
import struct
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from omlx_cache_storage.errors import CorruptPage, ForeignPage, UndecodablePage
from omlx_cache_storage.format.header import (
    CHECKSUM,
    LENGTH_BYTES,
    decode_header,
    encode_header,
    header_length,
    payload_checksum,
    payload_digest,
)
from omlx_cache_storage.format.packing import unwrap_into, unwrapped, wrap
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import REMOTE, Buffer, Page, PageId, PageInfo, flat

MOST_BYTES = 1 << 32
"""The longest value that is believed on the word of bytes that were not checked yet."""
_NUMBER = r"(0|[1-9][0-9]{0,14})"
_KEY, _GROUP = "((?:[0-9a-f]{32}){1,2})", "([a-z0-9]{1,40})"
_MEMBER = re.compile("-".join((_KEY, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _GROUP)))

WIRE_BYTES = 128
_MAGIC = b"OMLXREM1"
_LAYOUT = struct.Struct("<8sH6xQQQQ16s32s")
_AUTHENTICATED, _ENCRYPTED = 1, 2
_HEAD_BYTES = _LAYOUT.size
_BOUND_BYTES = 64
"""Bytes that a body is bound to, beside the name: all before its tag."""

SECRET_BYTES = 16
"""Bytes of the shortest secret: a shorter one can be guessed."""
_NONCE_BYTES, _TAG_BYTES = 12, 16
_TAG = b"omlx-cache remote v1: tag"
_BODY, _PAGE = b"omlx-cache remote v1: body ", b"omlx-cache remote v1: page "

TAILS = "tails"
"""Stands for a group in the name of a set of tails."""


class RemoteNames(NamedTuple):
    prefix: str
    architecture: str

    def page(self, namespace: BlockKey, page: PageId) -> str:
        bound = self.bound(namespace, page)
        return f"{self.prefix}/{bound}" if self.prefix else bound

    def bound(self, namespace: BlockKey, page: PageId) -> str:
        """Return the part of a page's name that its envelope is bound to: without the prefix, so
        that a store can be copied to another place."""
        return f"1/{self.architecture}/{namespace.hex()}/{page.key.hex()}-{page.group}"


class TailMember(NamedTuple):
    """A page in a set of tails: enough to plan a restore, not to trust. Each writer to the store
    can add members, with or without a secret."""

    key: BlockKey
    position: int
    held: int
    nbytes: int
    wire_bytes: int
    group: str

    def text(self) -> str:
        return "-".join((self.key.hex(), *map(str, self[1:])))


def parse_tails(members: Iterable[str]) -> list[TailMember]:
    """Return the pages that members name. A member that `TailMember.text` does not write, or of a
    page larger than there are, is skipped: a reader makes ready for the size that it says."""
    found = []
    for match in filter(None, map(_MEMBER.fullmatch, members)):
        position, held, nbytes, wire_bytes = map(int, match.groups()[1:5])
        if held <= position and max(nbytes, wire_bytes) <= MOST_BYTES:
            key = BlockKey(bytes.fromhex(match[1]))
            found.append(TailMember(key, position, held, nbytes, wire_bytes, match[6]))
    return found


class RemoteKeys:
    """The keys that authenticate and encrypt a page. Immutable.

    Without a secret nothing is authenticated, and an authenticated page is rejected; with one it is
    the other way round.
    """

    def __init__(self, secret: bytes | None = None, *, encrypts: bool = False) -> None:
        if secret is not None and len(secret) < SECRET_BYTES:
            raise ValueError(
                f"a shared secret has at least {SECRET_BYTES} bytes, this one {len(secret)}: "
                "make one with `openssl rand -hex 32`"
            )
        if encrypts and secret is None:
            raise ValueError("remote_encrypt needs a shared secret")
        self._secret = secret or b""
        self._tag = hmac.digest(self._secret, _TAG, "sha256")
        self.authenticates = secret is not None
        self.encrypts = encrypts

    def head_tag(self, head: bytes, name: str) -> bytes:
        tagged = head + name.encode()
        if not self.authenticates:
            return hashlib.sha256(tagged).digest()
        return hmac.digest(self._tag, tagged, "sha256")

    def cipher(self, name: str, nonce: bytes) -> Any:
        """Return what authenticates the body of a name's value, and encrypts it if bodies are. The
        library is there: `check_extra` looked for it."""
        ciphers = import_module("cryptography.hazmat.primitives.ciphers")
        key = hmac.digest(
            self._secret, (_PAGE if self.encrypts else _BODY) + name.encode(), "sha256"
        )
        return ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.GCM(nonce))


class Envelope(NamedTuple):
    """The fields of an envelope whose head tag was right. `bound`: the bytes that its body is bound
    to."""

    info: PageInfo
    body_bytes: int
    nonce: bytes
    body_tag: bytes
    bound: bytes

    @property
    def wire_bytes(self) -> int:
        return WIRE_BYTES + self.body_bytes


def seal(name: str, page: Page, keys: RemoteKeys, *, packs: bool = False) -> list[Buffer]:
    """Return the value of a page under a name, in pieces; copies the payload only to encrypt it.

    A packed page is not packed again. With `packs` a dense one is packed, where that pays.
    """
    stored = wrap(page) if packs else page
    payload = flat(stored.payload)
    header = encode_header(stored.meta, payload_checksum(payload))
    meta = unwrapped(stored.meta)
    pieces: list[Buffer] = [header, payload]
    flags, nonce, tag = 0, b"", b""
    if keys.authenticates:
        flags = _AUTHENTICATED | (_ENCRYPTED if keys.encrypts else 0)
        nonce = os.urandom(_NONCE_BYTES)
    numbers = (len(header) + len(payload), meta.position, meta.held, meta.nbytes)
    start = (_MAGIC, flags, *numbers, nonce)
    if keys.authenticates:
        cipher = keys.cipher(name, nonce).encryptor()
        cipher.authenticate_additional_data(_bound(_LAYOUT.pack(*start, b""), name))
        if keys.encrypts:
            pieces = [cipher.update(piece) for piece in pieces]
        else:
            for piece in pieces:
                cipher.authenticate_additional_data(piece)
        cipher.finalize()
        tag = cipher.tag
    head = _LAYOUT.pack(*start, tag)
    return [head + keys.head_tag(head, name), *pieces]


def read_envelope(name: str, first: Buffer, keys: RemoteKeys) -> Envelope:
    """Return the envelope in a value's first `WIRE_BYTES`.

    Raises UndecodablePage for an envelope of a later version, ForeignPage for one that does not
    match this secret, or its absence, CorruptPage for anything else.
    """
    raw = bytes(memoryview(first)[:WIRE_BYTES])
    if raw[:7] == _MAGIC[:7] and raw[:8] != _MAGIC:
        raise UndecodablePage(f"an envelope of version {raw[7:8]!r}, this is version 1")
    if len(raw) < WIRE_BYTES or raw[:8] != _MAGIC:
        raise CorruptPage(f"a value of {len(raw)} bytes or more that begins with {raw[:8]!r}")
    head = raw[:_HEAD_BYTES]
    _, flags, body_bytes, position, held, nbytes, nonce, tag = _LAYOUT.unpack(head)
    if bool(flags & _AUTHENTICATED) != keys.authenticates:
        said = "without a secret" if keys.authenticates else "with a secret that is not known here"
        raise ForeignPage(f"the value was written {said}")
    if not hmac.compare_digest(keys.head_tag(head, name), raw[_HEAD_BYTES:]):
        raise ForeignPage("the value is not one of this name, or was written with another secret")
    if bool(flags & _ENCRYPTED) != keys.encrypts:
        not_, on = ("not ", "on") if keys.encrypts else ("", "off")
        raise ForeignPage(f"the value is {not_}encrypted, and encryption is {on} here")
    if (
        head[10:16] != bytes(6)
        or flags & ~(_AUTHENTICATED | _ENCRYPTED)
        or body_bytes > MOST_BYTES
        or held > position
    ):
        raise CorruptPage("the envelope's numbers are none that are written")
    info = PageInfo(position, held, nbytes, REMOTE)
    return Envelope(info, body_bytes, nonce[:_NONCE_BYTES], tag[:_TAG_BYTES], _bound(head, name))


def _bound(head: bytes, name: str) -> bytes:
    return head[:_BOUND_BYTES] + name.encode()


CHECKED_BYTES = 256 * 1024
"""Bytes copied and checked at a time: a core's own cache still holds them."""


class ReceivedPage:
    """A received value whose envelope and header were checked; `read_into` checks the payload,
    once.

    The constructor raises PageError for a value that is not the requested page. `parts` are the
    value's bytes in order, cut anywhere; they are released as they are read. With a secret, `meta`
    is not authenticated until `read_into` returned: good for a plan. `was_read` says that it did,
    and all is right. With `asked` only so many first bytes were requested, and there is no `meta`
    when `head_bytes` are more.
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
        views = [flat(piece) for piece in pieces]
        if sum(view.nbytes for view in views) != self.meta.nbytes:
            raise ForeignPage("the page is of another size than the memory that it is read into")
        if self.meta is not self._stored:
            frame = bytearray(self._stored.nbytes)
            self._fill([memoryview(frame)])
            unwrap_into(frame, self.meta.nbytes, views)
        else:
            self._fill(views)
        self.was_read = True

    def _fill(self, pieces: Sequence[memoryview]) -> None:
        # Authenticated bytes are those of which the writer made the checksum.
        digest = None if self._cipher is not None else payload_digest()
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
        elif CHECKSUM + digest.hexdigest() != self._checksum:
            raise CorruptPage("the payload does not match its checksum")

    def _take(self, nbytes: int) -> bytes:
        found = bytearray(nbytes)
        return bytes(memoryview(found)[: self._copy(memoryview(found))])

    def _copy(self, target: memoryview) -> int:
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
