"""The clients of remote stores by themselves: what a restore is set beside."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import Part, RemoteOptions
from omlx_cache_storage.remote.tier import open_engine

Get = Callable[[Sequence[Part]], object]
"""Reads a value as the client's own documentation would."""


def client_of(options: RemoteOptions, stack: ExitStack) -> Get:
    """Return the client of a store's own way to get a value; `stack` closes it."""
    address = parse_address(options.url)
    if address.kind == "redis":
        import redis

        from omlx_cache_storage.remote.redis_engine import part_name

        host = address.hosts[0]
        client = stack.enter_context(redis.Redis(host.name, host.port))

        def pipelined(parts: Sequence[Part]) -> object:
            with client.pipeline(transaction=False) as commands:
                for part in parts:
                    commands.get(part_name(part.name, part.number))
                return commands.execute()

        return pipelined
    if address.kind == "file":
        import obstore
        from obstore.store import LocalStore

        store = LocalStore(Path(address.path))
        return lambda parts: [
            obstore.get_range(store, part.name, start=part.offset, length=part.nbytes)
            for part in parts
        ]
    # Of a bucket the engine asks its client as anybody would.
    engine = open_engine(address, options)
    stack.callback(engine.close)
    return engine.read
