"""Check every class of mlx-vlm's models/cache.py: kept bit for bit, or refused by name.

mlx-lm cannot be imported while this runs: caches of mlx-vlm need nothing of it. Run by
`make test-peers`.
"""

# ruff: noqa: E402 -- what shall not be imported is blocked before the first import.
from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from typing import Any

sys.modules["mlx_lm"] = None  # type: ignore[assignment]

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_vlm.models import cache as theirs
from mlx_vlm.turboquant import TurboQuantKVCache

from omlx_cache import BlockStore, CacheSettings, PrefixCache

HEADS, DIM, BLOCK, TOKENS, WINDOW, RATIO = 2, 32, 16, 150, 40, 4
KEPT: dict[str, Callable[[], Any]] = {
    "KVCache": theirs.KVCache,
    "ConcatenateKVCache": theirs.ConcatenateKVCache,
    "QuantizedKVCache": lambda: theirs.QuantizedKVCache(group_size=32, bits=4),
    "RotatingKVCache": lambda: theirs.RotatingKVCache(WINDOW, keep=4),
    "ChunkedKVCache": lambda: theirs.ChunkedKVCache(WINDOW),
    "ArraysCache": lambda: theirs.ArraysCache(2),
    "PoolingCache": lambda: theirs.PoolingCache(RATIO),
    "CacheList": lambda: theirs.CacheList(theirs.KVCache(), theirs.RotatingKVCache(WINDOW)),
    "TurboQuantKVCache": lambda: TurboQuantKVCache(3),
}
REFUSED = {
    "BatchKVCache": lambda: theirs.BatchKVCache([0]),
    "BatchRotatingKVCache": lambda: theirs.BatchRotatingKVCache(WINDOW, [0]),
    "BatchQuantizedKVCache": lambda: theirs.BatchQuantizedKVCache([0]),
    "BatchPoolingCache": lambda: theirs.BatchPoolingCache(RATIO, [0]),
    # Rolls back; an ordinary window is what a model makes.
    "BufferedRotatingKVCache": lambda: theirs.BufferedRotatingKVCache(WINDOW),
    # An encoder's states: they belong to no position of the prompt.
    "SimpleKVCache": theirs.SimpleKVCache,
    # A diffusion model's, and what its decoder reads.
    "StaticPrefixKVCache": lambda: theirs.StaticPrefixKVCache(256),
}
NEITHER = {"CacheMemory", "_BaseCache"}


class Nothing:
    """A model that computes nothing."""

    def parameters(self) -> dict[str, mx.array]:
        return {}


def open_store(directory: str) -> BlockStore:
    sizes = {"hot_bytes": "64MiB", "cold_bytes": "64MiB", "min_free_bytes": 0}
    return BlockStore(CacheSettings(cold_dir=directory, block_size=BLOCK, socket="off", **sizes))


def drawn(seed: int, *shape: int) -> mx.array:
    values = np.random.default_rng(seed).normal(size=shape)
    return mx.array(values.astype(np.float32)).astype(mx.bfloat16)


def feed(cache: Any, start: int, stop: int) -> None:
    """Append the tokens of these positions, the same ones whenever they are fed."""
    if isinstance(cache, theirs.CacheList):
        for inner in cache.caches:
            feed(inner, start, stop)
    elif isinstance(cache, theirs.ArraysCache):
        cache.cache = [drawn(stop, 1, 3, DIM), drawn(stop + 1, 1, HEADS, 4, DIM)]
    elif isinstance(cache, theirs.PoolingCache):
        kv, gate = (drawn(seed, 1, 2 * TOKENS, DIM)[:, start:stop] for seed in (1, 2))
        rows, _gates, _base = cache.accumulate_windows(kv, gate, start)
        pooled = rows.reshape(1, -1, RATIO, DIM).sum(axis=2)
        cache.update_and_fetch(pooled)
    else:
        keys, values = drawn(3, 2, 1, HEADS, 2 * TOKENS, DIM)
        if isinstance(cache, theirs.ChunkedKVCache):
            cache.maybe_trim_front()
        cache.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])


def seen(cache: Any) -> list[Any]:
    """Return what attention will read: the contents, without slack that nobody looks at."""
    if isinstance(cache, theirs.CacheList):
        return [array for inner in cache.caches for array in seen(inner)]
    if isinstance(cache, theirs.ChunkedKVCache):
        held = cache.offset - cache.start_position
        return [side[..., max(0, held - WINDOW) : held, :] for side in (cache.keys, cache.values)]
    if isinstance(cache, theirs.RotatingKVCache):
        # A chunk leaves more behind than the next one looks at.
        sides, keep = (cache.keys, cache.values), cache.keep
        recent = min(WINDOW, cache.keys.shape[2]) - keep
        return [part for s in sides for part in (s[..., :keep, :], s[..., -recent:, :])]
    return [array for _path, array in tree_flatten(cache.state) if isinstance(array, mx.array)]


def same(left: list[Any], right: list[Any]) -> bool:
    ones = [array for cache in left for array in seen(cache)]
    others = [array for cache in right for array in seen(cache)]
    return bool(ones) and all(
        one.shape == other.shape and mx.array_equal(one, other).item()
        for one, other in zip(ones, others, strict=True)
    )


def is_kept(name: str) -> None:
    """Restore hot and from the disk, at the end and where a prefix ends, then go on."""
    tokens = list(range(2 * TOKENS))

    def fresh() -> list[Any]:
        return [KEPT[name]()] + ([theirs.KVCache()] if name in ("ArraysCache",) else [])

    def fed(caches: list[Any], start: int, stop: int) -> list[Any]:
        for position in range(start, stop, 7):
            for cache in caches:
                feed(cache, position, min(position + 7, stop))
        return caches

    whole = fed(fresh(), 0, TOKENS)
    with tempfile.TemporaryDirectory() as directory:
        for process in ("hot", "cold"):
            with open_store(directory) as store:
                cache = PrefixCache(Nothing(), store, make_cache=fresh)
                if process == "hot":
                    with cache.session(tokens[:TOKENS]) as session:
                        fed(session.prompt_cache, 0, TOKENS)
                        session.commit()
                with cache.session(tokens[: TOKENS + 1]) as session:
                    assert session.cached_tokens == TOKENS, session.miss_reason
                    assert same(session.prompt_cache, whole), f"{process}, restored"
                    going, on = session.prompt_cache, fed(fresh(), 0, TOKENS)
                    steps = TOKENS, TOKENS + 7, *range(TOKENS + 8, TOKENS + 60)
                    for start, stop in pairwise(steps):
                        fed(going, start, stop)
                        fed(on, start, stop)
                        assert same(going, on), f"{process}, continued"
                assert store.flush()


def is_refused(name: str) -> None:
    """A miss that names the class; nothing is stored, nothing raised."""
    with tempfile.TemporaryDirectory() as directory, open_store(directory) as store:
        cache = PrefixCache(Nothing(), store, make_cache=lambda: [REFUSED[name]()])
        with cache.session(list(range(TOKENS))) as session:
            reason = str(session.miss_reason)
            session.commit()
        assert reason == f"unsupported:mlx_vlm.models.cache.{name}", reason
        assert not store.stats().hot.nbytes


def main() -> int:
    """Check every class and print one line for each that differs, and one at the end."""
    classes = {
        name
        for name, value in vars(theirs).items()
        if inspect.isclass(value) and value.__module__ == theirs.__name__
    }
    unknown = classes ^ {*KEPT, *REFUSED, *NEITHER} - {"TurboQuantKVCache"}
    failed = [f"neither kept nor refused: {sorted(unknown)}"] if unknown else []
    for names, check in ((KEPT, is_kept), (REFUSED, is_refused)):
        for name in names:
            try:
                check(name)
            except AssertionError as error:
                failed.append(f"{name}: {error}")
    assert sys.modules["mlx_lm"] is None
    for text in failed:
        print(f"FAILED {text}")
    if not failed:
        print(
            f"ok     mlx-vlm's caches: {len(KEPT)} kept bit for bit, {len(REFUSED)} refused by name"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
