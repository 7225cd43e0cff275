"""What is really held and freed, measured with MLX's own counters on real cache classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from kit import zoo
from kit.drive import random_tokens, settings
from kit.filling import DIM, HEADS, fill, held
from kit.units import MIB
from omlx_cache import BlockStore, PrefixCache

LAYERS = 4
TOKENS = 2048
PROMPT = random_tokens(TOKENS, 1)
KV_BYTES = LAYERS * 2 * HEADS * DIM * 2 * TOKENS


@pytest.fixture
def big(tmp_path: Path) -> Any:
    """Opens a store and a cache of large KVCache layers, 32 MiB for PROMPT."""
    stores: list[BlockStore] = []
    model = zoo.build("llama")

    def make(layers: Callable[[], list[Any]] | None = None, **fields: Any) -> PrefixCache:
        for store in stores:
            store.close()
        stores.append(BlockStore(settings(tmp_path, **{"block_size": 256, **fields})))
        kv = layers or (lambda: [KVCache() for _ in range(LAYERS)])
        return PrefixCache(model, stores[-1], make_cache=kv)

    yield make
    for store in stores:
        store.close()


def commit(cache: PrefixCache, count: int = TOKENS) -> None:
    with cache.session(PROMPT[:count]) as session:
        fill(session.prompt_cache, count - session.cached_tokens, session.cached_tokens)
        session.commit()


@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_a_restore_peaks_at_what_it_delivers(big: Any, tier: str) -> None:
    cache = big()
    commit(cache)
    assert cache.store.flush(60)
    if tier == "cold":
        cache = big()
    start = held() - cache.store.stats().hot.nbytes
    mx.reset_peak_memory()
    with cache.session([*PROMPT, 1], max_new_tokens=0) as session:
        # What the hot tier takes into its own budget on the way is not the restore's.
        peak = mx.get_peak_memory() - start - cache.store.stats().hot.nbytes
        assert session.cached_tokens == TOKENS
        assert session.cached_cold_tokens == (TOKENS if tier == "cold" else 0)
    assert peak <= 1.2 * KV_BYTES
    assert peak >= KV_BYTES


def test_the_first_appended_token_copies_nothing(big: Any) -> None:
    cache = big()
    commit(cache)
    with cache.session([*PROMPT, 1], max_new_tokens=64) as session:
        assert session.cached_tokens == TOKENS
        start = held()
        mx.reset_peak_memory()
        fill(session.prompt_cache, 1, TOKENS)
        fill(session.prompt_cache, 50, TOKENS + 1)
        assert mx.get_peak_memory() - start < KV_BYTES / LAYERS / 4


def test_commit_costs_the_pages_and_no_copy_of_the_cache_beside_them(big: Any) -> None:
    cache = big(hot_cache_only=True)
    with cache.session(PROMPT) as session:
        fill(session.prompt_cache, TOKENS)
        start = held()
        mx.reset_peak_memory()
        session.commit()
        assert mx.get_peak_memory() - start <= 1.1 * KV_BYTES


def hybrid() -> list[Any]:
    return [KVCache(), RotatingKVCache(256), ArraysCache(1)]


def test_captured_snapshots_own_their_memory(big: Any) -> None:
    cache = big(hybrid, hot_cache_only=True)
    before = held()
    session = cache.session(PROMPT[:600])
    for chunk in session.prefill_chunks(100):
        fill(session.prompt_cache, len(chunk), 0)
    stats = cache.store.stats()
    staged = stats.snapshots.live_bytes
    assert staged > 0
    session.prompt_cache.clear()
    session._layout = session._progress = None
    assert held() - before == pytest.approx(staged + stats.hot.nbytes, abs=MIB // 4)
    session.abort()
    assert held() - before == pytest.approx(stats.hot.nbytes, abs=MIB // 4)


def live_bytes(caches: list[Any]) -> int:
    """What a session's own caches hold: the room to grow that they have taken included."""
    sides = (c.cache if isinstance(c, ArraysCache) else (c.keys, c.values) for c in caches)
    return sum(array.nbytes for arrays in sides for array in arrays if array is not None)


def test_without_a_hot_tier_a_live_conversation_takes_its_tokens_once(big: Any) -> None:
    cache = big(hybrid, hot_bytes=0)
    tokens, before = random_tokens(4096, 2), held()
    for count in (2048, 3000, 4096):
        with cache.session(tokens[:count], max_new_tokens=0) as session:
            for chunk in session.prefill_chunks(512):
                fill(session.prompt_cache, len(chunk), session.prompt_cache[0].offset)
                assert cache.store.flush(60)
                assert held() - before <= 1.15 * live_bytes(session.prompt_cache)
            session.commit(release=True)
