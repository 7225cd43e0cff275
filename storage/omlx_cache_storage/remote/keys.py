"""Keys that a shared secret gives, and what lies behind an envelope: copied, authenticated or
decrypted on the way.

With a secret a body is authenticated by AES-256-GCM, under a key of its name's and a nonce of its
own: as data that is only authenticated, or as what is encrypted. The envelope's first bytes and the
name go before it.
"""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from omlx_cache_storage.errors import CorruptPage, UndecodablePage
from omlx_cache_storage.page import Buffer

SECRET_BYTES = 16
"""The shortest secret: what is shorter can be guessed."""
NONCE_BYTES, TAG_BYTES = 12, 16
_PRIMITIVES = "cryptography.hazmat.primitives.ciphers"
_TAG = b"omlx-cache remote v1: tag"
_BODY, _PAGE = b"omlx-cache remote v1: body ", b"omlx-cache remote v1: page "


class RemoteKeys:
    """What a page is authenticated and encrypted with. Immutable; `repr` shows no key.

    Without a secret nothing is authenticated, and what was is refused; with one it is the other way
    round.
    """

    __slots__ = ("_secret", "_tag", "encrypts")

    def __init__(self, secret: bytes | None = None, *, encrypts: bool = False) -> None:
        if secret is not None and len(secret) < SECRET_BYTES:
            raise ValueError(
                f"a shared secret has at least {SECRET_BYTES} bytes, this one {len(secret)}: "
                "make one with `openssl rand -hex 32`"
            )
        if encrypts and secret is None:
            raise ValueError("remote_encrypt needs a shared secret")
        self._secret = secret
        self._tag = b"" if secret is None else _derived(secret, _TAG)
        self.encrypts = encrypts

    def __repr__(self) -> str:
        return f"RemoteKeys(authenticates={self.authenticates}, encrypts={self.encrypts})"

    @property
    def authenticates(self) -> bool:
        return self._secret is not None

    def digest(self) -> "hmac.HMAC | hashlib._Hash":
        """Return what a head's tag is computed with: keyed by the secret, if there is one."""
        if self._secret is None:
            return hashlib.sha256()
        return hmac.new(self._tag, digestmod=hashlib.sha256)

    def body_key(self, name: bytes) -> bytes:
        """Return the key that authenticates the body of a name's value, and that encrypts it if
        bodies are encrypted; raises ValueError without a secret."""
        if self._secret is None:
            raise ValueError("there is no shared secret")
        return _derived(self._secret, (_PAGE if self.encrypts else _BODY) + name)


def _derived(secret: bytes, label: bytes) -> bytes:
    return hmac.digest(secret, label, "sha256")


class Body:
    """A body that comes: read once, from its beginning. What it gives is known to be what was
    written when `end` has returned, and not before."""

    def __init__(
        self, parts: Sequence[memoryview], keys: RemoteKeys, name: bytes, bound: bytes, nonce: bytes
    ) -> None:
        self._parts = iter(parts)
        self._part = memoryview(b"")
        self._decrypts = keys.encrypts
        self._cipher: Any = None
        if keys.authenticates:
            self._cipher = _cipher(keys, name, nonce).decryptor()
            self._cipher.authenticate_additional_data(bound)

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes, fewer where it ends."""
        found = bytearray(nbytes)
        filled = self.read_into(memoryview(found))
        return bytes(memoryview(found)[:filled])

    def read_into(self, target: memoryview) -> int:
        """Fill `target` with the next bytes; return how many there were."""
        filled = 0
        for source in self._next(target.nbytes):
            part = target[filled : filled + source.nbytes]
            if self._cipher is not None and self._decrypts:
                self._cipher.update_into(source, part)
            else:
                part[:] = source
                if self._cipher is not None:
                    # What was copied, not what came: nobody can change it in between.
                    self._cipher.authenticate_additional_data(part)
            filled += source.nbytes
        return filled

    def end(self, tag: bytes) -> None:
        """Raise CorruptPage unless all that was read is what the tag was made of."""
        if self._cipher is None:
            return
        try:
            self._cipher.finalize_with_tag(tag)
        except import_module("cryptography.exceptions").InvalidTag:
            raise CorruptPage("the page is not what its writer authenticated") from None

    def _next(self, nbytes: int) -> Iterator[memoryview]:
        while nbytes:
            if not self._part.nbytes:
                following = next(self._parts, None)
                if following is None:
                    return
                self._part = following
            some, self._part = self._part[:nbytes], self._part[nbytes:]
            nbytes -= some.nbytes
            if some.nbytes:
                yield some


def sealed(
    pieces: Sequence[Buffer], keys: RemoteKeys, name: bytes, bound: bytes, nonce: bytes
) -> tuple[list[Buffer], bytes]:
    """Return a body as it is sent, and its tag. Copies it only to encrypt it."""
    cipher = _cipher(keys, name, nonce).encryptor()
    cipher.authenticate_additional_data(bound)
    sent: list[Buffer] = []
    for piece in pieces:
        if keys.encrypts:
            sent.append(cipher.update(piece))
        else:
            cipher.authenticate_additional_data(piece)
            sent.append(piece)
    rest = cipher.finalize()
    return [*sent, *([rest] if rest else [])], cipher.tag


def _cipher(keys: RemoteKeys, name: bytes, nonce: bytes) -> Any:
    try:
        ciphers = import_module(_PRIMITIVES)
        modes, algorithms = ciphers.modes, ciphers.algorithms
    except ModuleNotFoundError:
        raise UndecodablePage(
            "a shared secret needs the extra: pip install 'omlx-cache[remote]'"
        ) from None
    return ciphers.Cipher(algorithms.AES(keys.body_key(name)), modes.GCM(nonce))
