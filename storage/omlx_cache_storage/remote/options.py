"""What a remote tier is opened with: plain values, checked by whoever reads settings, and packages
that are not always installed."""

from dataclasses import dataclass, field
from importlib.util import find_spec

from omlx_cache_storage.remote.address import PREFIX, TTL_SECONDS, RemoteAddress

LOOKUP_SECONDS = 0.5
READ_SECONDS = 2.0
CONNECTIONS = 8
"""Over so many connections pages are read at once: while one waits, others bring bytes."""
INSTALL = "pip install 'omlx-cache[remote]'"


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Where a remote store is, and how it is used. No field with a secret is in its `repr`.

    `lookup_seconds` is what a request waits at most for a look-up, `read_seconds` for the next page
    to come. `ttl_seconds` 0: values have no time to live. `secret` authenticates every page;
    `encrypts` makes pages unreadable without it. `architecture` stands in every name: machines
    share pages only where it is equal. `packs`: dense pages are packed losslessly for the way.
    """

    url: str = field(repr=False)
    architecture: str
    password: str | None = field(default=None, repr=False)
    secret: bytes | None = field(default=None, repr=False)
    encrypts: bool = False
    prefix: str = PREFIX
    ttl_seconds: int = TTL_SECONDS
    lookup_seconds: float = LOOKUP_SECONDS
    read_seconds: float = READ_SECONDS
    connections: int = CONNECTIONS
    packs: bool = True


class ExtraMissing(ImportError):
    """A client library is not installed; the text says what installs it."""


def check_extra(address: RemoteAddress, *, signs: bool = False) -> None:
    """Raise ExtraMissing unless what an address and a shared secret need is installed; imports
    nothing."""
    needed = ["obstore" if address.kind in ("s3", "file") else "redis"]
    needed += ["cryptography"] if signs else []
    for package in needed:
        if find_spec(package) is None:
            raise ExtraMissing(f"{address.shown} needs the package {package}: {INSTALL}")
