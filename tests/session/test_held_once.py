"""`hot_bytes=0`: a conversation is in memory once while it is computed, then on the disk only."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from kit import zoo
from kit.drive import random_tokens, settings
from kit.filling import fill, held
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.session import Session

BLOCK = 256
TOKENS = random_tokens(8 * 1024, 1)
TURNS = (2048, 3000, 4096)
KINDS: dict[str, Callable[[], list[Any]]] = {
    "dense": lambda: [KVCache() for _ in range(4)],
    "windowed": lambda: [KVCache(), KVCache(), RotatingKVCache(128), RotatingKVCache(128)],
    "hybrid": lambda: [KVCache(), KVCache(), KVCache(), ArraysCache(1)],
}

Open = Callable[..., PrefixCache]


@pytest.fixture
def open_cache(tmp_path: Path) -> Any:
    """Opens a store for caches of large layers."""
    with contextlib.ExitStack() as opened:

        def make(kind: str, hot_bytes: object = 0) -> PrefixCache:
            fields = {"block_size": BLOCK, "hot_bytes": hot_bytes}
            store = opened.enter_context(BlockStore(settings(tmp_path, **fields)))
            return PrefixCache(zoo.build("llama"), store, make_cache=KINDS[kind])

        yield make


def compute(session: Session, step: int = 512) -> None:
    for chunk in session.prefill_chunks(step):
        at = session.prompt_cache[0].offset
        fill(session.prompt_cache, len(chunk), at)


def turn(cache: PrefixCache, count: int) -> tuple[int, int]:
    """One request, and how many of its tokens were restored, and from the disk."""
    with cache.session(TOKENS[:count]) as session:
        compute(session)
        session.commit(release=True)
        return session.cached_tokens, session.cached_cold_tokens


def live_bytes(caches: list[Any]) -> int:
    """What a session's own caches hold: the room to grow that they have taken included."""
    return sum(array.nbytes for cache in caches for array in mx_arrays(cache))


def mx_arrays(cache: Any) -> list[mx.array]:
    arrays = cache.cache if isinstance(cache, ArraysCache) else [cache.keys, cache.values]
    return [array for array in arrays if array is not None]


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_live_conversation_takes_its_tokens_once(open_cache: Open, kind: str) -> None:
    cache = open_cache(kind)
    before = held()
    for count in TURNS:
        with cache.session(TOKENS[:count], max_new_tokens=0) as session:
            for chunk in session.prefill_chunks(512):
                fill(session.prompt_cache, len(chunk), session.prompt_cache[0].offset)
                assert cache.store.flush(60)
                assert held() - before <= 1.15 * live_bytes(session.prompt_cache)
            session.commit(release=True)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_next_turn_reads_the_disk(open_cache: Open, kind: str) -> None:
    cache = open_cache(kind)
    found = []
    for count in TURNS:
        found.append(turn(cache, count))
        assert cache.store.flush(60)
    assert found == [(0, 0), (TURNS[0], TURNS[0]), (TURNS[1], TURNS[1])]
    cache.store.hot.check_integrity()
