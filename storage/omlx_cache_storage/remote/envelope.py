"""The wire envelope: 128 bytes before a page file, which bind it to its name.

Little-endian:

    0    8  magic "OMLXREM1"
    8    2  flags: 1 authenticated by a shared secret, 2 encrypted
    10   6  zero
    16   8  length of the body that follows
    24   8  position of the page's end, in tokens
    32   8  tokens that it holds
    40   8  bytes that its payload takes when it is restored
    48  16  nonce (12 bytes and zeros) of an authenticated body, else zeros
    64  32  its AES-256-GCM tag (16 bytes and zeros), else zeros
    96  32  head tag: HMAC-SHA256, without a secret SHA-256, of the 96 bytes above and the name
    128     body: the page file byte for byte, or encrypted

The name is in the head tag, and by it in everything: a value under another name is refused.
"""

import hmac
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from omlx_cache_storage.errors import CorruptPage, ForeignPage, UndecodablePage
from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.wrapping import unwrapped, wrap
from omlx_cache_storage.page import Buffer, Page
from omlx_cache_storage.remote.keys import NONCE_BYTES, TAG_BYTES, Body, RemoteKeys, sealed
from omlx_cache_storage.remote.names import MOST_BYTES

WIRE_BYTES = 128
_MAGIC = b"OMLXREM1"
_FAMILY = b"OMLXREM"
_LAYOUT = struct.Struct("<8sH6xQQQQ16s32s")
_AUTHENTICATED, _ENCRYPTED = 1, 2
_HEAD_BYTES = _LAYOUT.size
_BOUND_BYTES = 64
"""What a body is bound to, with the name: all before its tag."""


class EnvelopeHeader(NamedTuple):
    """What an envelope says, once its head tag was right. `head` are the bytes that it is of."""

    body_bytes: int
    position: int
    held: int
    nbytes: int
    nonce: bytes
    body_tag: bytes
    head: bytes

    @property
    def wire_bytes(self) -> int:
        """The bytes of the whole value."""
        return WIRE_BYTES + self.body_bytes


def seal(name: str, page: Page, keys: RemoteKeys, *, packs: bool = False) -> list[Buffer]:
    """Return the value of a page under a name, in pieces; copies the payload only to encrypt it.

    The page may be one as it is stored: what is packed is not packed again. With `packs` a dense
    one is, where that pays.
    """
    stored = wrap(page) if packs else page
    payload = memoryview(stored.payload).cast("B") if stored.meta.nbytes else memoryview(b"")
    header = encode_header(stored.meta, payload_checksum([payload]))
    meta = unwrapped(stored.meta)
    numbers = (meta.position, meta.held, meta.nbytes)
    pieces: list[Buffer] = [header, payload]
    flags, nonce, tag = 0, b"", b""
    if keys.authenticates:
        flags = _AUTHENTICATED | (_ENCRYPTED if keys.encrypts else 0)
        nonce = os.urandom(NONCE_BYTES)
    start = (_MAGIC, flags, len(header) + len(payload), *numbers, nonce)
    if keys.authenticates:
        bound = _bound(_LAYOUT.pack(*start, b""), name)
        pieces, tag = sealed(pieces, keys, name.encode(), bound, nonce)
    head = _LAYOUT.pack(*start, tag)
    return [head + _head_tag(keys, head, name), *pieces]


def read_descriptor(name: str, first: Buffer, keys: RemoteKeys) -> EnvelopeHeader:
    """Return what a value's first `WIRE_BYTES` say.

    Raises UndecodablePage for an envelope of a later version, ForeignPage for one that this secret,
    or the want of one, does not accept, CorruptPage for anything else.
    """
    raw = bytes(memoryview(first)[:WIRE_BYTES])
    if raw[:7] == _FAMILY and raw[:8] != _MAGIC:
        raise UndecodablePage(f"an envelope of version {raw[7:8]!r}, this is version 1")
    if len(raw) < WIRE_BYTES or raw[:8] != _MAGIC:
        raise CorruptPage(f"a value of {len(raw)} bytes or more that begins with {raw[:8]!r}")
    head = raw[:_HEAD_BYTES]
    _, flags, body_bytes, position, held, nbytes, nonce, tag = _LAYOUT.unpack(head)
    if bool(flags & _AUTHENTICATED) != keys.authenticates:
        said = "without a secret" if keys.authenticates else "with a secret that is not known here"
        raise ForeignPage(f"the value was written {said}")
    if not hmac.compare_digest(_head_tag(keys, head, name), raw[_HEAD_BYTES:]):
        raise ForeignPage("the value is not one of this name, or was written with another secret")
    encrypted = bool(flags & _ENCRYPTED)
    if encrypted and not keys.encrypts:
        raise ForeignPage("the value is encrypted, and encryption is off here")
    if keys.encrypts and not encrypted:
        raise ForeignPage("the value is not encrypted, and encryption is on here")
    if (
        head[10:16] != bytes(6)
        or flags & ~(_AUTHENTICATED | _ENCRYPTED)
        or body_bytes > MOST_BYTES
        or held > position
    ):
        raise CorruptPage("the envelope's numbers are none that are written")
    return EnvelopeHeader(
        body_bytes, position, held, nbytes, nonce[:NONCE_BYTES], tag[:TAG_BYTES], head
    )


def length_said_by(first: Buffer) -> int:
    """Return how long a value is by its first bytes, 0 when they do not say."""
    raw = bytes(memoryview(first)[16:24])
    nbytes = WIRE_BYTES + int.from_bytes(raw, "little") if len(raw) == 8 else 0
    return nbytes if nbytes <= MOST_BYTES else 0


def opened(
    name: str, described: EnvelopeHeader, parts: Sequence[memoryview], keys: RemoteKeys
) -> Body:
    """Return the body that an envelope describes, of which the bytes are in `parts`; its `end`
    takes the descriptor's `body_tag`."""
    bound = _bound(described.head, name)
    return Body(parts, keys, name.encode(), bound, described.nonce)


def _bound(head: bytes, name: str) -> bytes:
    return head[:_BOUND_BYTES] + name.encode()


def _head_tag(keys: RemoteKeys, head: bytes, name: str) -> bytes:
    digest = keys.digest()
    digest.update(head)
    digest.update(name.encode())
    return digest.digest()
