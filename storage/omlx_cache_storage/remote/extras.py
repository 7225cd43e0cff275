"""Which packages a remote store needs that are not always installed."""

from importlib.util import find_spec

from omlx_cache_storage.remote.address import RemoteAddress

INSTALL = "pip install 'omlx-cache[remote]'"


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
