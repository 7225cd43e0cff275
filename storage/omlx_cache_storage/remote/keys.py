"""Keys that a shared secret gives: one that authenticates pages, and one to encrypt each name's."""

import hashlib
import hmac

SECRET_BYTES = 16
"""The shortest secret: what is shorter can be guessed."""
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
