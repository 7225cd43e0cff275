"""What stands for a salt in a namespace: a digest, so that a readable document does not tell it."""

import hashlib


def salt_digest(salt: str | bytes | None) -> str:
    """Return a salt's digest with its kind, empty for none; raises TypeError for anything else."""
    if salt is None:
        return ""
    # A lone surrogate, as JSON may bring one from a client, is a salt like any other.
    if isinstance(salt, str):
        kind, raw = "text", salt.encode("utf-8", "surrogatepass")
    elif isinstance(salt, bytes | bytearray | memoryview):
        kind, raw = "bytes", bytes(salt)
    else:
        # bytes(5) would be five zero bytes, which can be another tenant's salt.
        raise TypeError(f"a salt is text or bytes, not {type(salt).__name__}")
    return f"{kind}:{hashlib.sha256(raw).hexdigest()}"
