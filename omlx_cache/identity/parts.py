"""Parts of a namespace that stand for a salt and for the versions installed here.

Read without NumPy or MLX, so that a command may ask for them.
"""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from omlx_cache_storage.documents import MLX, MLX_LM, Versions, versions
from omlx_cache_storage.format import FORMAT_VERSION


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


def software() -> dict[str, str]:
    """Return the versions of what computes KV; empty text for what is not installed."""
    return {name: version_of(name) for name in (MLX, MLX_LM)}


def installed() -> Versions:
    """Return the versions of the namespaces that this environment makes."""
    return versions({"format": FORMAT_VERSION, "software": software()})


@cache
def version_of(package: str) -> str:
    """Return a package's version, empty when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
