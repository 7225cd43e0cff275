"""Opening the engine that an address names. Client libraries are imported here and not before."""

from importlib.util import find_spec

from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import RemoteEngine
from omlx_cache_storage.remote.options import RemoteOptions

INSTALL = "pip install 'omlx-cache[remote]'"


class ExtraMissing(ImportError):
    """A client library is not installed; the text says what installs it."""


def check_extra(address: RemoteAddress, *, encrypts: bool = False) -> None:
    """Raise ExtraMissing unless what an address and encryption need is installed; imports
    nothing."""
    needed = ["obstore" if address.kind in ("s3", "file") else "redis"]
    needed += ["cryptography"] if encrypts else []
    for package in needed:
        if find_spec(package) is None:
            raise ExtraMissing(f"{address.shown} needs the package {package}: {INSTALL}")


def open_engine(address: RemoteAddress, options: RemoteOptions) -> RemoteEngine:
    """Return an engine, which connects when it is first asked: a dead store raises nothing here.

    Raises ExtraMissing without the client library, ValueError for files that the address names and
    that cannot be used.
    """
    check_extra(address, encrypts=options.encrypts)
    if address.kind in ("s3", "file"):
        from omlx_cache_storage.remote.object_engine import ObjectEngine

        return ObjectEngine(address, options)
    from omlx_cache_storage.remote.redis_engine import RedisEngine

    return RedisEngine(address, options)
