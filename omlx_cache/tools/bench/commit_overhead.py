"""What commit and `append` cost where KV has next to no bytes: what is left is the host's own work.

Both are set beside the bare hash chain of the same tokens.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from omlx_cache.arrays.mlxio import evaluate
from omlx_cache.prefix import PrefixCache
from omlx_cache.session import Session
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.chains import CHAIN, hash_chain
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, OverheadSize
from omlx_cache.tools.bench.timing import in_turn, seconds
from omlx_cache_storage.keys import as_tokens

WINDOW = 4 * BLOCK_SIZE
KINDS: Mapping[str, Callable[[], Any]] = {
    "dense": KVCache,
    "windowed": lambda: RotatingKVCache(WINDOW),
    "hybrid": lambda: ArraysCache(2),
}
"""What every other layer is; the rest grow."""


@dataclass(frozen=True, slots=True)
class Layers:
    """A model that computes nothing, whose layers take one number a token and tensor."""

    layers: int
    kind: str

    def parameters(self) -> dict[str, mx.array]:
        return {}

    def make_cache(self) -> list[Any]:
        return [KVCache() if i % 2 else KINDS[self.kind]() for i in range(self.layers)]


def measure_commit_overhead(size: OverheadSize, directory: Path) -> list[Row]:
    """Time commits of whole sequences in memory and beside a busy writer, and appended tokens."""
    rows = []
    for tokens in size.tokens:
        rows += _commits(size, tokens, None)
    rows += _commits(size, size.tokens[0], directory)
    return rows + [_appends(size, kind) for kind in KINDS]


def _commits(size: OverheadSize, tokens: int, directory: Path | None) -> list[Row]:
    prompt = [(31 * i + 7) % 50_000 for i in range(tokens + 1)]
    array = as_tokens(prompt)
    salts = itertools.count()
    spent: list[float] = []
    with opened(directory) as store:
        cache = PrefixCache(Layers(size.layers, "dense"), store)
        sides = [mx.zeros((1, 1, tokens, 1), mx.bfloat16) + i for i in range(2 * size.layers)]
        evaluate(sides)

        def commit() -> None:
            salt = str(next(salts))
            session = cache.session(prompt, salt=salt)
            for i, layer in enumerate(session.prompt_cache):
                layer.keys, layer.values, layer.offset = sides[2 * i], sides[2 * i + 1], tokens
            began = time.perf_counter()
            result = session.commit()
            spent.append(time.perf_counter() - began)
            if result.pages != tokens // BLOCK_SIZE:
                raise RuntimeError(f"{result.pages} pages committed: {dict(result.skipped)}")
            cache.clear(salt=salt)

        times = in_turn({"ours": commit, "hash": lambda: hash_chain(array)}, size.runs)
    what = f"commit of {tokens:,} tokens x {size.layers} layers with next to no bytes"
    if directory is not None:
        what += ", beside a busy writer"
    return [Row(what, median(spent[1:]), CHAIN, times["hash"])]


def _appends(size: OverheadSize, kind: str) -> Row:
    """Time a token, blocks that end included; what feeds the model's cache is not counted."""
    prompt = list(range(2 * WINDOW))
    answer = list(range(size.appended))
    spent: list[float] = []
    with opened(None) as store:
        cache = PrefixCache(Layers(size.layers, kind), store)
        for salt in range(size.runs + 1):
            with cache.session(prompt, salt=str(salt), max_new_tokens=len(answer)) as session:
                fill(session.prompt_cache, len(prompt), len(prompt) + len(answer))
                session.checkpoint(len(prompt))
                spent.append(sum(_timed(session, token) for token in answer))
                if session.commit().tokens != len(prompt) + len(answer):
                    raise RuntimeError("what was appended was not stored")
            cache.clear(salt=str(salt))
    grown = as_tokens([*prompt, *answer])
    hashed = median(seconds(lambda: hash_chain(grown)) for _ in range(size.runs))
    what = f"append of a token x {size.layers} layers, {kind}, blocks included"
    each = median(spent[1:]) / len(answer)
    return Row(what, each, CHAIN, hashed / len(grown))


def _timed(session: Session, token: int) -> float:
    for layer in session.prompt_cache:
        feed(layer)
    began = time.perf_counter()
    session.append(token)
    return time.perf_counter() - began


def fill(caches: list[Any], tokens: int, room: int) -> None:
    """Have caches hold a prompt, with room to grow in those that do."""
    for layer in caches:
        if isinstance(layer, ArraysCache):
            layer.cache = [mx.zeros((1, 1, 1)), mx.zeros((1, 1, 1))]
            continue
        length = WINDOW if isinstance(layer, RotatingKVCache) else room
        layer.keys, layer.values = (mx.zeros((1, 1, length, 1), mx.bfloat16) for _ in range(2))
        layer.offset = tokens
        if isinstance(layer, RotatingKVCache):
            layer._idx = WINDOW
        evaluate([layer.keys, layer.values])


def feed(layer: Any) -> None:
    """Move a cache on by a token, as a decoding step does, and compute nothing."""
    if isinstance(layer, ArraysCache):
        layer.cache = list(layer.cache)
        return
    layer.offset += 1
    if isinstance(layer, RotatingKVCache):
        layer._idx = layer._idx % WINDOW + 1


@contextmanager
def opened(directory: Path | None) -> Iterator[BlockStore]:
    """A store in memory, or one that writes to `directory` as it goes."""
    settings = CacheSettings(
        **({} if directory is None else {"cold_dir": directory, "queue_bytes": 1 << 30}),
        hot_bytes=1 << 30,
        hot_cache_only=directory is None,
        min_free_bytes=0,
        block_size=BLOCK_SIZE,
        write_policy="through",
        codec="dense",
        socket="off",
    )
    with BlockStore(settings) as store:
        yield store
