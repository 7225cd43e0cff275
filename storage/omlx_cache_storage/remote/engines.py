"""Opening the engine that an address names. Client libraries are imported here and not before."""

from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import RemoteEngine
from omlx_cache_storage.remote.extras import check_extra
from omlx_cache_storage.remote.options import RemoteOptions


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
