"""A prompt cache that was told nothing of packing takes packed caches, and gives them back."""

import threading
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import QuantizedKVCache, make_prompt_cache

from kit import zoo
from omlx_cache import BlockStore
from omlx_cache.integrations.mlx_lm import LoadedModel, TieredPromptCache
from omlx_cache.requests.explanation import RequestRecord

from .conftest import Open, model_of, prompt_of

KEY = ("a model", None)
BITS, GROUP = 4, 32


@pytest.fixture(scope="module")
def model() -> Any:
    return zoo.build("llama")


def computed(model: Any, tokens: list[int], *, packed: bool = True) -> list[Any]:
    """The caches of a sequence, packed from its first token on."""
    caches = make_prompt_cache(model)
    if packed:
        caches = [cache.to_quantized(GROUP, BITS) for cache in caches_of(model, tokens, caches)]
    else:
        caches_of(model, tokens, caches)
    return caches


def caches_of(model: Any, tokens: list[int], caches: list[Any]) -> list[Any]:
    mx.eval(model(mx.array([tokens]), cache=caches))
    return caches


def sides(caches: list[Any], count: int) -> list[mx.array]:
    """All arrays of the first tokens of packed caches."""
    return [part[..., :count, :] for cache in caches for part in (*cache.keys, *cache.values)]


def found_by(cache: TieredPromptCache, tokens: list[int]) -> tuple[list[Any], int, RequestRecord]:
    """What a prompt's fetch gives, and how many tokens it holds."""
    caches, rest = cache.fetch_nearest_cache(KEY, tokens)
    assert cache.last is not None
    return caches or [], len(tokens) - len(rest), cache.last.record


@pytest.mark.parametrize("told", [True, False], ids=["loaded", "unknown"])
def test_packed_caches_are_given_back_as_they_were(
    told: bool, model: Any, store: BlockStore
) -> None:
    cache = TieredPromptCache(store, LoadedModel(KEY, model) if told else None)
    tokens = prompt_of(200)
    packed = computed(model, tokens)
    cache.insert_cache(KEY, tokens, packed)
    assert store.stats().requests.skips == {}
    for prompt, count in ((tokens, 199), ([*tokens, 7, 8], 200), ([*tokens[:90], 201, 202], 90)):
        caches, held, _last = found_by(cache, prompt)
        assert held == count
        assert [(type(c), c.bits, c.group_size, c.offset) for c in caches] == [
            (QuantizedKVCache, BITS, GROUP, count)
        ] * len(packed)
        for mine, own in zip(sides(caches, count), sides(packed, count), strict=True):
            assert mx.array_equal(mine, own)


def test_after_a_restart_they_are_for_whoever_shows_or_says_that_its_caches_are_packed(
    model: Any, open_store: Open
) -> None:
    source, tokens, other = LoadedModel(KEY, model), prompt_of(200), prompt_of(80, seed=9)
    TieredPromptCache(open_store(), source).insert_cache(KEY, tokens, computed(model, tokens))
    silent = TieredPromptCache(open_store(), source)
    # It might be a server of dense batches, which packed caches would end.
    assert found_by(silent, tokens)[1] == 0
    silent.insert_cache(KEY, other, computed(model, other))
    caches, held, last = found_by(silent, tokens)
    assert (held, last.cold_tokens, type(caches[0])) == (199, 199, QuantizedKVCache)
    told = TieredPromptCache(open_store(), source, kv_bits=BITS, kv_group_size=GROUP)
    caches, held, last = found_by(told, tokens)
    assert (held, last.cold_tokens, type(caches[0])) == (199, 199, QuantizedKVCache)
    others = TieredPromptCache(open_store(), source, kv_bits=8, kv_group_size=GROUP)
    assert found_by(others, tokens)[1] == 0


def test_a_fetch_on_another_thread_sees_what_an_insert_stores_that_has_begun(
    store: BlockStore,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(TieredPromptCache):
        def _insert(self, *args: Any) -> None:
            begun.set()
            assert goes_on.wait(60)
            super()._insert(*args)

    class Watched:
        """A lock that lets the insert go on when somebody waits for it."""

        def __init__(self, lock: Any) -> None:
            self._lock = lock
            self.release = lock.release

        def acquire(self, timeout: float) -> bool:
            goes_on.set()
            return bool(self._lock.acquire(timeout=60 * timeout))

        def __enter__(self) -> Any:
            return self._lock.__enter__()

        def __exit__(self, *error: object) -> None:
            self._lock.__exit__(*error)

    model = model_of("qwen3")
    cache, tokens = Slow(store, LoadedModel(KEY, model)), prompt_of(100)
    caches = computed(model, tokens, packed=False)
    cache._lock = Watched(cache._lock)  # type: ignore[assignment]
    inserts = threading.Thread(target=cache.insert_cache, args=(KEY, tokens, caches))
    inserts.start()
    try:
        assert begun.wait(60)
        assert found_by(cache, tokens)[1] == 99
    finally:
        goes_on.set()
        inserts.join()
