"""Engines for tests, opened as a configuration opens them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import Part, RemoteEngine, RemoteError, RemoteOptions
from omlx_cache_storage.remote.tier import open_engine

PATIENT_SECONDS = 30.0

# The client of object stores keeps a runtime, with descriptors, for as long as the process lives:
# begun here, it is nothing that a test left behind.
with contextlib.suppress(ImportError):
    import obstore
    from obstore.store import MemoryStore

    obstore.put(MemoryStore(), "a", b"")


@contextlib.contextmanager
def engine_at(url: str, **options: Any) -> Iterator[RemoteEngine]:
    """Open an engine that waits for long, unless `options` say otherwise."""
    seconds = {"lookup_seconds": PATIENT_SECONDS, "read_seconds": PATIENT_SECONDS}
    given = RemoteOptions(url=url, architecture="test", **{**seconds, **options})
    with contextlib.closing(open_engine(parse_address(url), given)) as engine:
        yield engine


def whole(engine: RemoteEngine, name: str, lengths: Sequence[int]) -> list[bytes | None]:
    """Return the parts of a value, of which the lengths are known."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    parts = [Part(name, n, starts[n], length) for n, length in enumerate(lengths)]
    return [None if found is None else bytes(found) for found in engine.read(parts)]


def write(engine: RemoteEngine, name: str, *parts: Buffer, replace: bool = False) -> bool:
    """Write a value, each part in one piece."""
    return engine.write(name, [[part] for part in parts], replace=replace)


def reason_of(call: Callable[..., object], *arguments: Any, **more: Any) -> RemoteError:
    """Return what a call raises."""
    with pytest.raises(RemoteError) as raised:
        call(*arguments, **more)
    return raised.value
