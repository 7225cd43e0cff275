"""`memory_once`: what a live session holds leaves memory when it is on the disk, and comes back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from kit import zoo
from kit.drive import random_tokens, request, run, same, settings
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
    """Opens stores one after the other, in one directory, for caches of large layers."""
    stores: list[BlockStore] = []
    model = zoo.build("llama")

    def make(kind: str = "dense", **fields: Any) -> PrefixCache:
        for store in stores:
            store.close()
        fields = {"block_size": BLOCK, "memory_once": True, **fields}
        stores.append(BlockStore(settings(tmp_path, **fields)))
        return PrefixCache(model, stores[-1], make_cache=KINDS[kind])

    yield make
    for store in stores:
        store.close()


def compute(session: Session, step: int = 512) -> None:
    for chunk in session.prefill_chunks(step):
        at = session.prompt_cache[0].offset
        fill(session.prompt_cache, len(chunk), at)


def turn(cache: PrefixCache, count: int, **options: Any) -> tuple[int, int]:
    """One request, and how many of its tokens were restored, and from the disk."""
    with cache.session(TOKENS[:count], **options) as session:
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
    assert cache.store.stats().hot.let_go_pages > 0


@pytest.mark.parametrize("kind", list(KINDS))
def test_without_it_memory_holds_the_pages_as_well(open_cache: Open, kind: str) -> None:
    cache = open_cache(kind, memory_once=False)
    before = held()
    with cache.session(TOKENS[:2048]) as session:
        compute(session)
        assert cache.store.flush(60)
        assert held() - before > 1.9 * live_bytes(session.prompt_cache)
    assert cache.store.stats().hot.let_go_pages == 0


def test_the_prefix_that_a_session_restored_leaves_at_once(open_cache: Open) -> None:
    cache = open_cache()
    turn(cache, 2048)
    assert cache.store.flush(60)
    full = held()
    with cache.session(TOKENS[:2049], max_new_tokens=0) as session:
        assert (session.cached_tokens, session.cached_cold_tokens) == (2048, 0)
        assert cache.store.stats().hot.nbytes == 0
        assert held() - full < 0.15 * full


@pytest.mark.parametrize("kind", list(KINDS))
def test_after_the_commit_the_next_turn_reads_no_disk(open_cache: Open, kind: str) -> None:
    cache = open_cache(kind)
    found = []
    for count in TURNS:
        found.append(turn(cache, count))
        assert cache.store.flush(60)
    assert found == [(0, 0), (TURNS[0], 0), (TURNS[1], 0)]
    cache.store.hot.check_integrity()


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "qwen3_next"])
def test_what_is_restored_later_is_what_was_computed(tmp_path: Path, family: str) -> None:
    model = zoo.build(family)
    tokens = random_tokens(400, 3)
    with BlockStore(settings(tmp_path, memory_once=True)) as store:
        cache = PrefixCache(model, store)
        ours = []
        for count in (130, 260, 400):
            ours.append(request(model, cache, tokens[:count], new=5))
            assert store.flush(60)
            tokens[count : count + 5] = ours[-1].answer
        assert ours[-1].cached > 250
        assert store.stats().hot.let_go_pages > 0
        assert store.stats().requests.restored_cold_tokens == 0
        fed = tokens[: ours[-1].cached]
        expected = run(model, [fed, *ours[-1].steps])
        # Chunk ends change the last bits of some layers: only what follows them is compared.
        steps = [s for t in ours[:2] for s in t.steps]
        if sum(map(len, steps)) == len(fed):
            expected = run(model, [*steps, *ours[-1].steps])
        assert same(ours[-1].logits, expected[-len(ours[-1].logits) :])


def test_what_another_live_session_holds_stays(open_cache: Open) -> None:
    cache = open_cache()
    shared = TOKENS[:1024]
    first = cache.session([*shared, *TOKENS[4000:5000]])
    compute(first)
    second = cache.session([*shared, *TOKENS[6000:6500]])
    compute(second)
    assert cache.store.flush(60)
    assert cache.store.stats().hot.let_go_pages > 0
    with cache.session([*shared, 1], max_new_tokens=0) as third:
        assert (third.cached_tokens, third.cached_cold_tokens) == (1024, 0)
    for session in (first, second):
        session.abort()
    with cache.session([*shared, 2], max_new_tokens=0) as fourth:
        assert (fourth.cached_tokens, fourth.cached_cold_tokens) == (1024, 0)


def test_what_a_request_in_a_queue_waits_for_stays(open_cache: Open) -> None:
    cache = open_cache()
    shared = TOKENS[:1024]
    with cache.session([*shared, *TOKENS[4000:5000]]) as session:
        begun = cache.begin([*shared, 1, 2, 3])
        compute(session)
        assert cache.store.flush(60)
        with cache.session([*shared, 1, 2, 3], begun=begun) as other:
            assert (other.cached_tokens, other.cached_cold_tokens) == (1024, 0)


def test_one_that_comes_later_reads_a_shared_prefix_from_the_disk_once(open_cache: Open) -> None:
    cache = open_cache()
    shared = TOKENS[:1024]
    with cache.session([*shared, *TOKENS[4000:5000]]) as session:
        compute(session)
        assert cache.store.flush(60)
        assert cache.store.stats().hot.nbytes == 0
        cold = []
        for last in (1, 2):
            with cache.session([*shared, last], max_new_tokens=0) as other:
                cold.append((other.cached_tokens, other.cached_cold_tokens))
        assert cold == [(1024, 1024), (1024, 0)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_session_that_ends_without_commit_holds_nothing(open_cache: Open, lost: bool) -> None:
    cache = open_cache()
    session: Session | None = cache.session(TOKENS[:1024])
    assert session is not None
    compute(session)
    if not lost:
        session.abort()
    session = None
    held()
    assert cache.store.flush(60)
    cache.store.stats()
    live = cache.store.live
    assert live is not None
    assert (live._holding, live._waiting) == ({}, {})


@pytest.mark.parametrize(
    "fields",
    [
        {"hot_cache_only": True},
        {"cold_codec": "affine8"},
        {"codec": "affine8", "min_quantize_tokens": 0},
        {"write_policy": "lazy"},
    ],
)
def test_where_the_disk_lacks_a_page_or_its_bits_nothing_leaves(
    open_cache: Open, fields: dict[str, Any]
) -> None:
    cache = open_cache(**fields)
    with cache.session(TOKENS[:2048]) as session:
        compute(session)
        pages = cache.store.stats().hot.pages
        assert pages > 0
        if "write_policy" not in fields:
            assert cache.store.flush(60)
        assert cache.store.stats().hot.pages == pages
    assert cache.store.stats().hot.let_go_pages == 0


def test_a_disk_that_cannot_be_used_keeps_everything_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    fields = {"block_size": BLOCK, "memory_once": True}
    with BlockStore(settings(tmp_path / "file" / "cache", **fields)) as store:
        cache = PrefixCache(zoo.build("llama"), store, make_cache=KINDS["dense"])
        with cache.session(TOKENS[:1024]) as session:
            compute(session)
            session.commit(release=True)
        store.flush(5)
        assert store.stats().hot.let_go_pages == 0
        assert turn(cache, 1025) == (1024, 0)


def test_a_conversation_larger_than_memory_brings_back_what_fits(open_cache: Open) -> None:
    cache = open_cache(hot_bytes="16MiB", queue_bytes="16MiB")
    for count in TURNS:
        turn(cache, count)
        assert cache.store.flush(60)
        usage = cache.store.stats().hot
        assert 0 < usage.nbytes <= usage.limit_bytes
    cached, cold = turn(cache, TURNS[-1] + 1)
    assert cached == TURNS[-1]
    assert 0 < cold < cached
