"""Opening a remote tier: what it is made of is imported where there is one, and not before."""

from importlib import import_module

from omlx_cache_storage.events import SILENT, EventLog
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engines import open_engine
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.tier import RemoteBacking


def open_tier(
    address: RemoteAddress, options: RemoteOptions, events: EventLog = SILENT
) -> RemoteBacking:
    """Return the tier on the store at an address; asks nobody yet.

    Raises what `open_engine` does, and nothing for a store that does not answer.
    """
    make = import_module(f"{__package__}.tier").RemoteTier
    engine = open_engine(address, options)
    tier: RemoteBacking = make(
        engine, options, engine_name=address.kind, where=address.shown, events=events
    )
    return tier
