"""TieredPromptCache against the class that it stands in for."""

import copy
import gc
import weakref
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, LRUPromptCache, make_prompt_cache

from kit import zoo
from kit.versions import keys_and_values
from omlx_cache import BlockStore
from omlx_cache.integrations.mlx_lm import LoadedModel, TieredPromptCache
from omlx_cache_storage.keys import as_tokens

from .conftest import Open, model_of, prompt_of

KEY = ("a model", None, None)


def request(
    cache: Any, model: Any, tokens: list[int], segments: tuple[int, ...] = ()
) -> tuple[int, mx.array]:
    """Do what the server does; return the cached tokens and the last logits."""
    caches, rest = cache.fetch_nearest_cache(KEY, tokens)
    position = cached = len(tokens) - len(rest)
    caches = make_prompt_cache(model) if caches is None else caches
    for end in sorted({*segments, len(tokens)}):
        if end > position:
            logits = model(mx.array([tokens[position:end]]), cache=caches)
            mx.eval(logits)
            position = end
            cache.insert_cache(KEY, tokens[:end], copy.deepcopy(caches), cache_type="user")
    return cached, logits[0, -1]


@pytest.fixture
def cache(store: BlockStore) -> TieredPromptCache:
    return TieredPromptCache(store, LoadedModel(KEY, model_of("qwen3")))


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "qwen3_next", "falcon_h1"])
def test_restores_no_less_than_upstream_and_the_same_bits(family: str, store: BlockStore) -> None:
    model = model_of(family)
    ours: Any = TieredPromptCache(store, LoadedModel(KEY, model))
    theirs: Any = LRUPromptCache()
    first = prompt_of(300)
    prompts = [
        (first, (40, 200)),
        (first + [7] * 30, ()),
        (first[:250] + [9] * 40, ()),
        (first[:100] + [5] * 20, ()),
        (first[:30], ()),
    ]
    for tokens, segments in prompts:
        mine, other = (request(c, model, tokens, segments) for c in (ours, theirs))
        assert mine[0] >= other[0]
        if mine[0] == other[0]:
            assert mx.array_equal(mine[1], other[1])
    assert store.stats().requests.skips == {}


def test_at_least_one_token_is_left_over(cache: TieredPromptCache) -> None:
    for length in (0, 1, 2, 64, 65, 128):
        tokens = prompt_of(length)
        if length:
            request(cache, model_of("qwen3"), tokens)
        caches, rest = cache.fetch_nearest_cache(KEY, tokens)
        assert rest == tokens[-1:] or (caches is None and rest == tokens)


def test_the_list_is_the_callers_own(cache: TieredPromptCache) -> None:
    model, tokens = model_of("qwen3"), prompt_of(100)
    _, expected = request(cache, model, tokens)
    for _ in range(2):
        caches, rest = cache.fetch_nearest_cache(KEY, tokens)
        assert caches is not None
        assert mx.array_equal(model(mx.array([rest]), cache=caches)[0, -1], expected)
        model(mx.array([[1, 2, 3]]), cache=caches)
        mx.eval([c.state for c in caches])


def test_what_is_prepared_parts_from_a_sequence_inside_a_block_and_others_from_it(
    cache: TieredPromptCache,
) -> None:
    model, tokens = model_of("qwen3"), prompt_of(130)
    request(cache, model, tokens)
    expected = as_tokens(tokens[:90] + [201] * 110)
    preparation = cache.preparation(KEY, expected, 1000)
    assert preparation is not None
    while preparation.step(model):
        pass
    assert preparation.computed == 110
    cache.note_prepared(KEY, expected)
    cached, logits = request(cache, model, [*expected[:150].tolist(), 7, 8, 9])
    assert cached == 150
    fresh = make_prompt_cache(model)
    for chunk in (tokens[:90], *([201] * n for n in (32, 28)), [7, 8, 9]):
        last = model(mx.array([chunk]), cache=fresh)[0, -1]
    assert mx.allclose(logits, last, atol=1e-5)
    assert cache.preparation("another model", expected, 1000) is None


def test_a_model_that_was_unloaded_is_freed(store: BlockStore) -> None:
    model = zoo.build("qwen3", seed=9)
    source = _Provider(model)
    cache = TieredPromptCache(store, source)
    request(cache, model, prompt_of(80))
    gone = weakref.ref(model)
    source.model = None
    del model
    gc.collect()
    assert gone() is None
    assert cache.fetch_nearest_cache(KEY, prompt_of(80, seed=1))[0] is None


def test_a_model_that_is_loaded_anew_under_its_key_is_looked_at_again(store: BlockStore) -> None:
    source = _Provider(zoo.build("qwen3", seed=1))
    cache, tokens = TieredPromptCache(store, source), prompt_of(80)
    request(cache, source.model, tokens)
    source.model = zoo.build("qwen3", seed=2)
    assert cache.fetch_nearest_cache(KEY, tokens) == (None, tokens)
    source.model = zoo.build("qwen3", seed=1)
    assert len(cache.fetch_nearest_cache(KEY, tokens)[1]) == 1


class _Provider:
    """As mlx-lm's ModelProvider: says what is loaded, which changes."""

    def __init__(self, model: Any) -> None:
        self.model_key = KEY
        self.model = model
        self.draft_model = None


def test_a_draft_models_caches_are_restored_to_the_same_position(store: BlockStore) -> None:
    target, draft = model_of("qwen3"), zoo.build("qwen3", seed=3)
    cache = TieredPromptCache(store, LoadedModel(KEY, target, draft))
    tokens = prompt_of(150)
    lists = [make_prompt_cache(m) for m in (target, draft)]
    for model, caches, count in zip((target, draft), lists, (150, 149), strict=True):
        mx.eval(model(mx.array([tokens[:count]]), cache=caches))
    cache.insert_cache(KEY, tokens, lists[0] + lists[1])
    caches, rest = cache.fetch_nearest_cache(KEY, [*tokens, 1, 2, 3])
    assert caches is not None
    assert len(caches) == len(lists[0]) + len(lists[1])
    assert {c.offset for c in caches} == {149}
    assert rest == [tokens[149], 1, 2, 3]


def test_counts_sequences_by_type_and_trims(open_store: Open) -> None:
    model = model_of("qwen3")
    cache = TieredPromptCache(open_store(hot_cache_only=True), LoadedModel(KEY, model))
    for seed, kind in enumerate(("system", "user", "assistant")):
        caches = make_prompt_cache(model)
        tokens = prompt_of(128, seed)
        mx.eval(model(mx.array([tokens]), cache=caches))
        cache.insert_cache(KEY, tokens, caches, cache_type=kind)
    assert len(cache) == 3
    rows = cache.stats_by_type()
    assert [rows[kind]["n_sequences"] for kind in ("system", "user", "assistant")] == [1, 1, 1]
    assert sum(row["n_bytes"] for row in rows.values()) == cache.nbytes > 0
    cache.trim_to(n_sequences=2)
    assert cache.stats_by_type()["assistant"]["n_sequences"] == 0
    cache.trim_to(n_bytes=cache.nbytes // 2)
    assert len(cache.fetch_nearest_cache(KEY, prompt_of(129, 2)[:128])[1]) > 1
    cache.trim_to(n_bytes=-5)
    assert cache.nbytes == 0
    assert len(cache) == 0


@pytest.mark.parametrize("tokens", [["a", "b"], [1.5, 2.5], [2**70, 1], [None, None]])
def test_nonsense_is_a_miss_and_never_raises(tokens: list[Any], cache: TieredPromptCache) -> None:
    assert cache.fetch_nearest_cache(KEY, tokens) == (None, tokens)
    cache.insert_cache(KEY, tokens, [object()])
    cache.insert_cache(KEY, [1, 2, 3], ["not a cache"])
    cache.insert_cache("unknown", [1, 2, 3], [object()])
    assert len(cache) == 0


@pytest.mark.parametrize("options", [{}, {"max_size": 10}, {"max_size": 10, "max_bytes": 1 << 30}])
def test_it_is_made_and_used_as_upstreams_is(options: dict[str, int]) -> None:
    def numbered(count: int) -> tuple[mx.array, mx.array]:
        column = mx.arange(count).reshape(1, 1, count, 1)
        return column, column

    cache = TieredPromptCache(**options)
    key, first = ("any", None, None), [10] * 24
    assert cache.fetch_nearest_cache(key, first) == (None, first)
    made = [KVCache()]
    made[0].update_and_fetch(*numbered(24))
    cache.insert_cache(key, first, made)
    found, rest = cache.fetch_nearest_cache(key, [*first, 20, 20])
    assert found is not None
    assert rest == [20, 20]
    found[0].update_and_fetch(*numbered(5))
    cache.insert_cache(key, [*first, 20, 20, 30, 30, 30], found)
    parted, rest = cache.fetch_nearest_cache(key, [*first, 20, 20, 40])
    assert parted is not None
    assert rest == [40]
    keys, values = keys_and_values(parted[0])
    assert keys.flatten().tolist() == values.flatten().tolist() == [*range(24), 0, 1]
    cache.insert_cache(("another", None, None), first, parted)
    assert TieredPromptCache(**options).fetch_nearest_cache(key, first)[0] is None


def test_a_request_ends_when_it_is_stored_with_its_answer(
    store: BlockStore, cache: TieredPromptCache
) -> None:
    """`monitor` shows what has ended, and a server of mlx-lm's says no more than what it stores."""
    model, prompt = model_of("qwen3"), prompt_of(100)
    for _ in range(2):
        cache.fetch_nearest_cache(KEY, prompt)
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[*prompt, 7, 8]]), cache=caches))
    cache.insert_cache(KEY, prompt, caches)
    assert [record.total_seconds for record in store.requests.records()] == [None, None]
    for ended in (1, 2):
        cache.insert_cache(KEY, [*prompt, 7, 8], caches)
        records = store.requests.records()
        assert [record.generated_tokens for record in records] == [2] * ended + [0] * (2 - ended)
        assert [record.total_seconds is not None for record in records].count(True) == ended
