"""Keep the real mlx-vlm's TurboQuantKVCache in a store; exits with 1 when a bit differs.

Run by `make test-peers` beside check_mlx_vlm.py, in the same environment.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import mlx.core as mx
import numpy as np
from keeping import Nothing, open_store
from mlx_vlm.turboquant import TurboQuantKVCache

from omlx_cache import PrefixCache

HEADS, DIM, LAYERS, TOKENS, BLOCK = 2, 80, 3, 300, 64


def fresh() -> list[Any]:
    return [TurboQuantKVCache(bits) for bits in (4, 3, 2)]


def feed(caches: list[Any], start: int, stop: int) -> None:
    """Append the same drawn tokens whenever the same positions are fed."""
    for layer, cache in enumerate(caches):
        drawn = np.random.default_rng(layer).normal(size=(2, 1, HEADS, 2 * TOKENS, DIM))
        keys, values = mx.array(drawn.astype(np.float32)).astype(mx.bfloat16)
        cache.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])


def same(left: list[Any], right: list[Any]) -> bool:
    return all(
        type(one) is type(other)
        and mx.array_equal(mine.norms, theirs.norms).item()
        and mx.array_equal(mine.indices, theirs.indices).item()
        for one, other in zip(left, right, strict=True)
        for mine, theirs in zip(one.state, other.state, strict=True)
    )


def main() -> int:
    """Commit, then restore hot, from the disk, and at a position inside a page."""
    tokens = list(range(2 * TOKENS))
    live = fresh()
    feed(live, 0, TOKENS)
    with tempfile.TemporaryDirectory() as directory:
        with open_store(directory, BLOCK) as store:
            cache = PrefixCache(Nothing(), store, make_cache=fresh)
            with cache.session(tokens[:TOKENS]) as session:
                feed(session.prompt_cache, 0, TOKENS)
                stored = session.commit()
            with cache.session(tokens[: TOKENS + 1]) as session:
                assert session.cached_tokens == TOKENS, session.miss_reason
                assert same(session.prompt_cache, live), "hot"
            assert store.flush()
        dense = 2 * 2 * LAYERS * HEADS * DIM * TOKENS
        assert stored.nbytes < dense / 3, (stored.nbytes, dense)
        with open_store(directory, BLOCK) as store:
            cache = PrefixCache(Nothing(), store, make_cache=fresh)
            with cache.session(tokens[:200]) as session:
                assert session.cached_tokens == 192, session.miss_reason
                feed(session.prompt_cache, 192, TOKENS)
                assert same(session.prompt_cache, live), "cold, then continued"
    print("ok     a live TurboQuantKVCache is stored and restored packed, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
