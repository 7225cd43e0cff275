"""A remote store beside its own client: reading pages, and looking a long prompt up from afar."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from omlx_cache.arrays.mlxio import HostView
from omlx_cache.store import READ_THREADS
from omlx_cache.tools.bench.delay_line import DelayLine
from omlx_cache.tools.bench.remote_clients import client_of
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.timing import in_turn
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.page import PAGED, Page, PageId, PageMeta, TensorSpec
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import Part, RemoteOptions
from omlx_cache_storage.remote.envelope import WIRE_BYTES, RemoteKeys, RemoteNames, read_envelope
from omlx_cache_storage.remote.knowledge import KNOWN_SECONDS
from omlx_cache_storage.remote.lookups import Inquiry
from omlx_cache_storage.remote.tier import RemoteTier, open_engine

BLOCK = 256
LOOKUP_TOKENS = 131_072
DELAYS = (0.0, 0.001, 0.010, 0.050)
"""Seconds that each direction takes."""
RUNS = 15
"""Of a restore: what else the machine does is longer than one."""
LOOKUP_RUNS = 5
_SECRET = b"a secret for measurements only"


class Work(NamedTuple):
    """How much is measured: pages of a restore and how often, look-ups and from how far away."""

    page_bytes: int = 4 << 20
    pages: int = 32
    runs: int = RUNS
    lookup_runs: int = LOOKUP_RUNS
    delays: Sequence[float] = DELAYS


class Lookup(NamedTuple):
    """What one look-up of a long prompt took: of a chain that is there, from so far away."""

    delay_seconds: float
    seconds: float
    phases: int
    names: int
    found: int


class RemoteResults(NamedTuple):
    """Rows beside the client alone, and look-ups from several distances, by kind of store."""

    rows: Sequence[Row]
    lookups: dict[str, Sequence[Lookup]]


class Chain:
    """A prompt's pages, `nbytes` each, and what asks for them."""

    def __init__(self, name: str, blocks: int, nbytes: int) -> None:
        self.blocks, self.nbytes = blocks, nbytes
        self.namespace = namespace_digest({"bench": name})
        self.keys = KeyChain(self.namespace, as_tokens(range(blocks * BLOCK)), BLOCK)
        self.ids = [PageId(self.keys.key(n * BLOCK), PAGED) for n in range(1, blocks + 1)]
        self._payload = np.random.default_rng(7).bytes(nbytes)

    def page(self, number: int) -> Page:
        end = number * BLOCK
        meta = PageMeta(
            self.namespace,
            self.keys.key(end),
            self.keys.parent(end),
            PAGED,
            end,
            BLOCK,
            False,
            "dense",
            (TensorSpec("kv", "U8", (self.nbytes,)),),
        )
        return Page(meta, self._payload)

    @property
    def inquiry(self) -> Inquiry:
        keys: list[BlockKey] = self.keys.boundaries(0, self.blocks)
        length = self.blocks * BLOCK
        return Inquiry(self.namespace, BLOCK, keys, PAGED, 0, {}, length, self.keys.key)


ALL = Work()


def measure_remote(workspace: Path, say: Callable[[str], None], work: Work = ALL) -> RemoteResults:
    """Measure a Redis server on this machine, if there is one, and a directory."""
    rows: list[Row] = []
    lookups: dict[str, Sequence[Lookup]] = {}
    with _redis(workspace) as port:
        if port is not None:
            url = f"redis://127.0.0.1:{port}"
            say("reading from redis")
            rows += _reading("redis", url, work)
            say("looking up in redis")
            lookups["redis"] = [_from_afar(port, delay, work.lookup_runs) for delay in work.delays]
    say("reading from a directory")
    share = workspace / "share"
    share.mkdir()
    rows += _reading("file", share.as_uri(), work)
    if 0.0 in work.delays:
        say("looking up in a directory")
        lookups["file"] = [_looked_up(share.as_uri(), 0.0, work.lookup_runs)]
    return RemoteResults(rows, lookups)


def _options(url: str, *, secret: bool = False) -> RemoteOptions:
    given = _SECRET if secret else None
    return RemoteOptions(
        url, "bench", secret=given, packs=False, lookup_seconds=60.0, read_seconds=60.0
    )


class _Clock:
    """A clock that can be put forward."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def _tier(options: RemoteOptions, clock: Callable[[], float] = time.monotonic) -> RemoteTier:
    address = parse_address(options.url)
    engine = open_engine(address, options)
    return RemoteTier(engine, options, engine_name=address.kind, where=address.shown, clock=clock)


def _reading(kind: str, url: str, work: Work) -> list[Row]:
    """Return restores beside raw GETs of the same bytes, unsigned and signed: GETs whose values
    are kept until the last one came, and, which takes less, GETs whose values nobody keeps."""
    rows = []
    for secret in (False, True):
        with _Reading(_options(url, secret=secret), work) as both:
            pools = {width: ThreadPoolExecutor(width) for width in (1, 2, 4, 8)}
            works: dict[str, Callable[[], object]] = {"ours": both.restore}
            for width, pool in pools.items():
                works[f"{width} at once, kept"] = partial(both.get_all, pool)
                works[f"{width} at once, let go"] = partial(both.get_each, pool)
            took = in_turn(works, work.runs)
            for pool in pools.values():
                pool.shutdown()
        what = f"remote restore, {kind}{', signed' if secret else ''}"
        for how in ("kept", "let go"):
            best = min((name for name in took if name.endswith(how)), key=took.__getitem__)
            limit = f"raw GET, {best}"
            nbytes = work.pages * work.page_bytes
            rows.append(Row(what, took["ours"], limit, took[best], nbytes, limit=True))
    return rows


class _Reading:
    """One chain in a store: read as a restore does, and by the client alone."""

    def __init__(self, options: RemoteOptions, work: Work) -> None:
        page_bytes, pages = work.page_bytes, work.pages
        self._chain = Chain(f"reading {options.secret is not None}", pages, page_bytes)
        self._tier = _tier(options)
        self._stack = ExitStack()
        self._get = client_of(options, self._stack)
        self._readers = ThreadPoolExecutor(READ_THREADS)
        for number in range(1, pages + 1):
            self._tier.store.write(self._chain.page(number))
        names, keys = RemoteNames(options.prefix, options.architecture), RemoteKeys(options.secret)
        placed = [(self._chain.namespace, page) for page in self._chain.ids]
        named = [names.page(*one) for one in placed]
        engine = open_engine(parse_address(options.url), options)
        with closing(engine):
            heads, _ = engine.look(named, WIRE_BYTES)
        sizes = [
            read_envelope(names.bound(*one), head or b"", keys).wire_bytes
            for one, head in zip(placed, heads, strict=True)
        ]
        pairs = zip(named, sizes, strict=True)
        self._parts = [_parts(name, size, engine.part_bytes) for name, size in pairs]
        self._targets = [np.zeros(page_bytes, np.uint8) for _ in range(pages)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.shutdown()
        self._tier.close(10.0)
        self._stack.close()

    def restore(self) -> None:
        """Read and check every page, on as many threads as a store has for that."""
        list(self._readers.map(self._read, self._chain.ids, self._targets))

    def _read(self, page: PageId, target: HostView) -> None:
        with self._tier.reading(page) as opened:
            opened.read_into([target])

    def get_all(self, pool: ThreadPoolExecutor) -> object:
        """Read the same bytes and have them all in the end, as a restore does."""
        return list(pool.map(self._get, self._parts))

    def get_each(self, pool: ThreadPoolExecutor) -> None:
        """Read the same bytes, and let go of each value as soon as it came."""
        list(pool.map(self._got, self._parts))

    def _got(self, parts: Sequence[Part]) -> None:
        self._get(parts)


def _parts(name: str, nbytes: int, part_bytes: int | None) -> list[Part]:
    size = part_bytes or nbytes
    return [
        Part(name, number, offset, min(size, nbytes - offset))
        for number, offset in enumerate(range(0, nbytes, size))
    ]


def _from_afar(port: int, delay: float, runs: int) -> Lookup:
    if not delay:
        return _looked_up(f"redis://127.0.0.1:{port}", 0.0, runs)
    near = f"redis://127.0.0.1:{port}"
    _fill(near)
    with DelayLine(("127.0.0.1", port), delay) as line:
        return _looked_up(f"redis://127.0.0.1:{line.port}", delay, runs)


_LONG = Chain("looking up", LOOKUP_TOKENS // BLOCK, 1024)


def _fill(url: str) -> None:
    tier = _tier(_options(url))
    try:
        for number in range(1, _LONG.blocks + 1):
            tier.store.write(_LONG.page(number))
    finally:
        tier.close(10.0)


def _looked_up(url: str, delay: float, runs: int) -> Lookup:
    """Return what the median look-up of a long prompt takes, on connections that are open."""
    if not delay:
        _fill(url)
    took: list[Lookup] = []
    clock = _Clock()
    tier = _tier(_options(url), clock)
    try:
        for _ in range(runs + 1):
            before = tier.usage()
            began = time.perf_counter()
            tier.ask(_LONG.inquiry, 60.0)
            seconds = time.perf_counter() - began
            after = tier.usage()
            found = sum(info is not None for info in tier.find_all(_LONG.ids))
            took.append(
                Lookup(
                    delay,
                    seconds,
                    after.lookup_phases - before.lookup_phases,
                    after.asked_pages - before.asked_pages,
                    found,
                )
            )
            # What is known is not asked again.
            clock.ahead += 2 * KNOWN_SECONDS
    finally:
        tier.close(10.0)
    return sorted(took[1:], key=lambda one: one.seconds)[runs // 2]


def redis_program() -> str | None:
    """Return the server that is installed here, None without one."""
    return shutil.which("valkey-server") or shutil.which("redis-server")


@contextmanager
def _redis(workspace: Path) -> Iterator[int | None]:
    """Start a server on loopback that keeps nothing on the disk; None where none is installed."""
    program = redis_program()
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--appendonly", "no", "--dir", os.fspath(workspace)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(30)
