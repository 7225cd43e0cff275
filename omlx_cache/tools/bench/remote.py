"""Stores that machines share, beside their own clients: reading pages, and looking a prompt up."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from omlx_cache.arrays.mlxio import HostView
from omlx_cache.store import READ_THREADS
from omlx_cache.tools.bench.bed import NAMESPACE, chain_of, pages_of
from omlx_cache.tools.bench.figures import (
    BLOCK_SIZE,
    BenchRow,
    Measured,
    PreparedWork,
    Size,
    Work,
    beside,
)
from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.page import PAGED, Page
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import ExtraMissing, RemoteOptions, check_extra
from omlx_cache_storage.remote.envelope import WIRE_BYTES
from omlx_cache_storage.remote.knowledge import KNOWN_SECONDS
from omlx_cache_storage.remote.lookups import Inquiry
from omlx_cache_storage.remote.tier import RemoteTier, open_engine

PAGE_BYTES, PAGES = 4 << 20, 32
SMALL_PAGE_BYTES = 1024
WIDTHS = (1, 2, 4, 8)
"""Threads on which the client alone reads; the fastest counts."""
SECRET = b"a secret for measurements only"


class RawClient(NamedTuple):
    """A store's own client; `ask` asks for so many small values at once, None where that takes a
    request for each."""

    put: Callable[[str, bytes], object]
    get: Callable[[str], object]
    ask: Callable[[int], object] | None = None


def measure_remote(size: Size, directory: Path, say: Callable[[str], None]) -> Measured:
    """Measure a directory, and a Redis server where one is installed; names skipped stores."""
    share = directory / "share"
    share.mkdir(parents=True)
    try:
        for url in ("file:///share", "redis://127.0.0.1"):
            check_extra(parse_address(url), signs=True)
        rows = _rows(size, "file", share.as_uri(), _file_client(share))
        with _redis_server(directory) as port:
            if port is None:
                say("redis is left out: neither valkey-server nor redis-server is installed")
            else:
                rows += _rows(size, "redis", f"redis://127.0.0.1:{port}", _redis_client(port))
    except (ExtraMissing, CacheError) as error:
        # A server that does not start must not cost the earlier measurements.
        say(f"remote stores are left out: {error}")
        return Measured()
    return Measured(rows)


def _file_client(share: Path) -> RawClient:
    import obstore
    from obstore.store import LocalStore

    store = LocalStore(share)
    return RawClient(partial(obstore.put, store), lambda name: obstore.get(store, name).bytes())


def _redis_client(port: int) -> RawClient:
    import redis
    from redis.backoff import ConstantBackoff
    from redis.retry import Retry

    # The server was started just now.
    client = redis.Redis("127.0.0.1", port, retry=Retry(ConstantBackoff(0.05), 200))
    client.ping()

    def ask(count: int) -> list[Any]:
        with client.pipeline(transaction=False) as commands:
            for _ in range(count):
                commands.getrange("0", 0, WIRE_BYTES - 1)
            return commands.execute()

    return RawClient(client.set, client.get, ask)


def _rows(size: Size, kind: str, url: str, client: RawClient) -> list[BenchRow]:
    nbytes = min(PAGE_BYTES, size.kv_bytes // 2)
    count = min(PAGES, size.kv_bytes // nbytes)
    names = [str(number) for number in range(count)]
    for name in names:
        client.put(name, bytes(nbytes))
    rows = []
    with ExitStack() as opened:
        pools = [opened.enter_context(ThreadPoolExecutor(width)) for width in WIDTHS]
        gets: list[Work] = [partial(_all, pool, client.get, names) for pool in pools]
        for number, (secret, signed) in enumerate(((None, ""), (SECRET, ", signed"))):
            pages = pages_of(number, count, nbytes)
            tier = opened.enter_context(closing(_Remote(url, secret, pages)))
            what = f"remote restore, {kind}{signed}"
            # Other work of the machine takes longer than one of them.
            runs, moved = 2 * size.runs + 1, count * nbytes
            rows += beside(what, tier.restore, runs, limits={"raw GETs": gets}, nbytes=moved)
        if client.ask is not None:
            long = pages_of(2, size.chain_tokens // BLOCK_SIZE, SMALL_PAGE_BYTES)
            tier = opened.enter_context(closing(_Remote(url, None, long)))
            rows += beside(
                f"remote lookup of {size.chain_tokens:,} tokens, {kind}",
                PreparedWork(tier.forget, tier.look_up),
                size.runs,
                limits={"one pipeline of GETRANGE": [partial(client.ask, len(long))]},
            )
    return rows


def _all(pool: ThreadPoolExecutor, get: Callable[[str], object], names: list[str]) -> list[object]:
    return list(pool.map(get, names))


class _Remote:
    """A remote tier that has some pages. Mutable: `_ahead`, by which its clock was put forward."""

    def __init__(self, url: str, secret: bytes | None, pages: list[Page]) -> None:
        options = RemoteOptions(
            url, "bench", secret=secret, packs=False, lookup_seconds=60.0, read_seconds=60.0
        )
        address = parse_address(url)
        self._ahead = 0.0
        self._tier = RemoteTier(
            open_engine(address, options),
            options,
            engine_name=address.kind,
            where=address.shown,
            clock=lambda: time.monotonic() + self._ahead,
        )
        self._ids = [page.meta.id for page in pages]
        self._targets = [np.zeros(page.meta.nbytes, np.uint8) for page in pages]
        self._readers = ThreadPoolExecutor(READ_THREADS)
        for page in pages:
            self._tier.store.write(page)

    def restore(self) -> None:
        list(self._readers.map(self._read, self._ids, self._targets))

    def _read(self, page: Any, target: HostView) -> None:
        with self._tier.reading(page) as opened:
            opened.read_into([target])

    def forget(self) -> Inquiry:
        """Clear the known pages, and return an inquiry for all of the chain."""
        self._ahead += 2 * KNOWN_SECONDS
        chain = chain_of(2, len(self._ids))
        keys = chain.boundaries(0, len(self._ids))
        return Inquiry(NAMESPACE, BLOCK_SIZE, keys, PAGED, 0, {}, len(chain), chain.key)

    def look_up(self, inquiry: Inquiry) -> None:
        self._tier.ask(inquiry, 60.0)
        if None in self._tier.find_all(self._ids):
            raise RuntimeError("the remote store lost pages")

    def close(self) -> None:
        self._readers.shutdown()
        self._tier.close(10.0)


@contextmanager
def _redis_server(directory: Path) -> Iterator[int | None]:
    """Yield the port of a server that keeps nothing on the disk; None where none is installed."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--appendonly", "no", "--dir", os.fspath(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)
