"""Opening the engine that an address names. Client libraries are imported here and not before."""

from importlib import import_module

from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import RemoteEngine
from omlx_cache_storage.remote.extras import check_extra
from omlx_cache_storage.remote.options import RemoteOptions

_REDIS = ("redis_engine", "RedisEngine")
_OBJECTS = ("object_engine", "ObjectEngine")
_ENGINES = {"s3": _OBJECTS, "file": _OBJECTS}


def open_engine(address: RemoteAddress, options: RemoteOptions) -> RemoteEngine:
    """Return an engine, which connects when it is first asked: a dead store raises nothing here.

    Raises ExtraMissing without the client library, ValueError for files that the address names and
    that cannot be used.
    """
    check_extra(address, signs=options.secret is not None)
    module, name = _ENGINES.get(address.kind, _REDIS)
    made: RemoteEngine = getattr(import_module(f"{__package__}.{module}"), name)(address, options)
    return made
