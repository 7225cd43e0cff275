"""What the host pays for pages, layers and tokens where KV has next to no bytes.

    python -m benchmarks.overhead [SIZE]

Commits, restores, look-ups and appended tokens, each beside the bare hash chain of the same tokens.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from omlx_cache.adapters.base import PAGED, STATE, GroupSpec
from omlx_cache.arrays.mlxio import evaluate
from omlx_cache.prefix import PrefixCache
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.session import Session
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.bed import (
    CHAIN,
    NAMESPACE,
    Bed,
    chain_of,
    ends_of,
    hash_chain,
    pages_of,
)
from omlx_cache.tools.bench.figures import (
    BLOCK_SIZE,
    SIZES,
    BenchRow,
    PreparedWork,
    Size,
    beside,
    seconds,
)
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.keys import KeyChain, as_tokens

LAYERS = 32
APPENDED = 4 * BLOCK_SIZE
WINDOW = 4 * BLOCK_SIZE
SNAPSHOT_BLOCKS = 16
KINDS: Mapping[str, Callable[[], Any]] = {
    "dense": KVCache,
    "windowed": lambda: RotatingKVCache(WINDOW),
    "hybrid": lambda: ArraysCache(2),
}
"""What every other layer is; the rest grow."""
LAYOUTS = {
    "": PAGED,
    ", with windows": GroupSpec("window", WINDOW),
    ", with snapshots": STATE,
}
"""The group of layers beside the paged one. Of snapshots some blocks have one, the last among them.
"""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Layers:
    """A model that computes nothing, whose layers take one number a token and tensor."""

    layers: int
    kind: str

    def parameters(self) -> dict[str, mx.array]:
        return {}

    def make_cache(self) -> list[Any]:
        return [KVCache() if i % 2 else KINDS[self.kind]() for i in range(self.layers)]


def measure_overhead(size: Size, directory: Path) -> Iterator[BenchRow]:
    """Measure in memory, from files, and beside a busy writer."""
    tiny = replace(size, layers=LAYERS, heads=1, head_dim=1, tokens=size.chain_tokens)
    what = f"{size.chain_tokens:,} tokens x {LAYERS} layers without bytes"
    for hot in (True, False):
        bed = Bed(tiny, directory, hot=hot, durability="none")
        hashed = {CHAIN: [partial(hash_chain, as_tokens(bed.tokens))]}
        with bed.store:
            if hot:
                live = bed.live_arrays()
                commit = PreparedWork(partial(bed.again, live), bed.commit)
                yield from beside(f"commit of {what}", commit, size.runs, limits=hashed)
                busy = PreparedWork(partial(_beside_a_busy_writer, bed, live), bed.commit)
                told = f"commit of {what}, beside a busy writer"
                yield from beside(told, busy, size.runs, limits=hashed)
                bed.commit(bed.filled(live))
                bed.flush()
            tier = "hot" if hot else "cold"
            told = f"restore, {tier}, of {what}"
            yield from beside(told, bed.restore, size.runs, limits=hashed)
    for layout, group in LAYOUTS.items():
        yield from _look_up(size, layout, group)
    for kind in KINDS:
        yield _appends(size.runs, kind)


def _beside_a_busy_writer(bed: Bed, live: list[Any]) -> Session:
    session = bed.again(live)
    bed.cache.clear(salt="busy")
    bed.commit(bed.filled(live, "busy"))
    return session


def _look_up(size: Size, layout: str, group: GroupSpec) -> list[BenchRow]:
    chain = chain_of(1, size.chain_tokens // BLOCK_SIZE)
    tier, tokens, groups = HotTier(1 << 30), chain.tokens, tuple(dict.fromkeys((PAGED, group)))
    for page in pages_of(1, len(ends_of(chain)), 1):
        for kept in groups:
            block = page.meta.position // BLOCK_SIZE
            if kept is STATE and block % SNAPSHOT_BLOCKS and page.meta.position < len(tokens):
                continue
            meta = replace(page.meta, group=kept.name, held=0 if kept is STATE else BLOCK_SIZE)
            tier.put(page._replace(meta=meta), tier.reserve(1), dirty=False, stamp_ns=1 << 40)
    view = tier

    def look_up() -> None:
        chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
        point = find_restore_point(chain, groups, view, limit=len(tokens))
        if point.position != len(tokens):
            raise RuntimeError(f"the look-up ended at {point.position}")

    what = f"look-up of {size.chain_tokens:,} tokens{layout}"
    return beside(what, look_up, size.runs, limits={CHAIN: [partial(hash_chain, tokens)]})


def _appends(runs: int, kind: str) -> BenchRow:
    """Time a token, blocks that end included; what feeds the model's cache is not counted."""
    prompt = list(range(2 * WINDOW))
    spent: list[float] = []
    with opened() as store:
        cache = PrefixCache(Layers(LAYERS, kind), store)
        for _ in range(runs + 1):
            with appending(cache, prompt, APPENDED) as session:
                spent.append(sum(_appended(session, token) for token in range(APPENDED)))
    grown = as_tokens([*prompt, *range(APPENDED)])
    hashed = median(seconds(lambda: hash_chain(grown)) for _ in range(runs))
    what = f"append of a token x {LAYERS} layers, {kind}, blocks included"
    return BenchRow(what, median(spent[1:]) / APPENDED, CHAIN, hashed / len(grown), 0, True)


def _appended(session: Session, token: int) -> float:
    feed(session)
    began = time.perf_counter()
    session.append(token)
    return time.perf_counter() - began


_salts = itertools.count()


@contextmanager
def appending(cache: PrefixCache, prompt: list[int], count: int) -> Iterator[Session]:
    """A session that holds a prompt, with room to grow by `count` tokens; deleted afterwards."""
    salt = str(next(_salts))
    with cache.session(prompt, salt=salt, max_new_tokens=count) as session:
        for layer in session.prompt_cache:
            if isinstance(layer, ArraysCache):
                layer.cache = [mx.zeros((1, 1, 1)), mx.zeros((1, 1, 1))]
                continue
            rotates = isinstance(layer, RotatingKVCache)
            length = WINDOW if rotates else len(prompt) + count
            layer.keys, layer.values = (mx.zeros((1, 1, length, 1), mx.bfloat16) for _ in range(2))
            layer.offset = len(prompt)
            if rotates:
                layer._idx = WINDOW
            evaluate([layer.keys, layer.values])
        session.checkpoint(len(prompt))
        yield session
        if session.commit().tokens < len(prompt):
            raise RuntimeError("the prompt was not stored")
    cache.clear(salt=salt)


def feed(session: Session) -> None:
    """Move a session's caches on by a token, as a decoding step does, and compute nothing."""
    for layer in session.prompt_cache:
        if isinstance(layer, ArraysCache):
            layer.cache = list(layer.cache)
            continue
        layer.offset += 1
        if isinstance(layer, RotatingKVCache):
            layer._idx = layer._idx % WINDOW + 1


@contextmanager
def opened() -> Iterator[BlockStore]:
    """A store in memory."""
    settings = CacheSettings(
        hot_bytes=1 << 30,
        hot_cache_only=True,
        block_size=BLOCK_SIZE,
        codec="dense",
        socket="off",
    )
    with BlockStore(settings) as store:
        yield store


def main(size: str = "small") -> None:
    with tempfile.TemporaryDirectory(prefix="omlx-cache-bench-") as directory:
        for row in measure_overhead(SIZES[size], Path(directory) / "pages"):
            print(f"{row.ratio:9.2g} {row.what}, beside {row.compared_with}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
