"""Opening a remote tier: what it is made of is imported where there is one, and not before."""

from importlib import import_module
from typing import TYPE_CHECKING

from omlx_cache_storage.events import SILENT, EventLog
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import RemoteEngine
from omlx_cache_storage.remote.options import RemoteOptions, check_extra

if TYPE_CHECKING:
    from omlx_cache_storage.remote.tier import RemoteTier

_ENGINES = {"s3": "object_engine.ObjectEngine", "file": "object_engine.ObjectEngine"}
_REDIS = "redis_engine.RedisEngine"


def open_engine(address: RemoteAddress, options: RemoteOptions) -> RemoteEngine:
    """Return an engine, which connects when it is first asked: a dead store raises nothing here.

    Raises ExtraMissing without the client library, ValueError for files that the address names and
    that cannot be used.
    """
    check_extra(address, signs=options.secret is not None)
    module, _, name = _ENGINES.get(address.kind, _REDIS).partition(".")
    made: RemoteEngine = getattr(import_module(f"{__package__}.{module}"), name)(address, options)
    return made


def open_tier(
    address: RemoteAddress, options: RemoteOptions, events: EventLog = SILENT
) -> "RemoteTier":
    """Return the tier on the store at an address; asks nobody yet.

    Raises what `open_engine` does, and nothing for a store that does not answer.
    """
    from omlx_cache_storage.remote.tier import RemoteTier

    engine = open_engine(address, options)
    return RemoteTier(engine, options, engine_name=address.kind, where=address.shown, events=events)
