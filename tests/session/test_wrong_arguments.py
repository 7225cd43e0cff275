"""What no request brings, but a mistake in a program, raises where it is made, and is named."""

from typing import Any

import pytest
from mlx_lm.models.cache import KVCache

from kit.drive import random_tokens
from omlx_cache import BlockStore, PrefixCache, register_adapter
from omlx_cache.adapters import KVCacheAdapter

PROMPT = random_tokens(100, 1)


def test_a_store_and_a_model_that_are_swapped_are_named(model: Any, store: BlockStore) -> None:
    swapped: Any = (store, model)
    with pytest.raises(TypeError, match=r"got Model for the store.*: the two are swapped"):
        PrefixCache(*swapped)


def test_what_is_no_store_is_named(model: Any, store: BlockStore) -> None:
    settings: Any = store.settings
    with pytest.raises(TypeError, match=r"CacheSettings for the store, which must be a BlockStore"):
        PrefixCache(model, settings)


@pytest.mark.parametrize("tokenizer", [object(), ("model", "tokenizer"), None])
def test_what_is_no_model_is_named(store: BlockStore, tokenizer: Any) -> None:
    said = rf"got {type(tokenizer).__name__} for the model, which must be an MLX model"
    with pytest.raises(TypeError, match=said):
        PrefixCache(tokenizer, store)


@pytest.mark.parametrize("bits", [7, 0, -1, 9, 2**40, "8", 8.0, True])
def test_bits_that_mlx_cannot_pack_are_refused_before_a_model_meets_them(
    cache: PrefixCache, bits: Any
) -> None:
    for use in (cache.session, cache.begin, cache.lookup, cache.prefetch):
        with pytest.raises(ValueError, match="kv_bits"):
            use(PROMPT, kv_bits=bits)


def test_a_misspelt_option_does_not_share_a_tenants_pages_with_everybody(
    cache: PrefixCache,
) -> None:
    options: Any = {"slat": "tenant-a"}
    for use in (cache.session, cache.begin, cache.lookup, cache.prefetch):
        with pytest.raises(TypeError, match="unexpected keyword argument slat"):
            use(PROMPT, **options)


@pytest.mark.parametrize("step", [0, -1, 2.5, "512", None, True])
def test_a_step_that_is_none_is_refused(cache: PrefixCache, step: Any) -> None:
    with cache.session(PROMPT) as session:
        with pytest.raises(ValueError, match="step must be an integer of at least 1"):
            next(session.prefill_chunks(step))
        with pytest.raises(ValueError, match="step must be an integer of at least 1"):
            session.next_stop(step)
        assert session.next_stop(512) == len(PROMPT)


def test_an_adapter_without_its_methods_is_refused_and_not_kept() -> None:
    adapter: Any = object()
    for _ in range(2):
        with pytest.raises(TypeError, match=r"omlx_cache\.Adapter: .* lacks arrays, config, group"):
            register_adapter("some.package.Cache", adapter)


def test_a_cache_class_instead_of_its_name_is_answered_with_the_name() -> None:
    named: Any = KVCache
    with pytest.raises(TypeError, match=r'"mlx_lm\.models\.cache\.KVCache", not <class'):
        register_adapter(named, KVCacheAdapter())


def test_a_store_refuses_to_register_what_is_no_namespace(store: BlockStore) -> None:
    other: Any = object()
    with pytest.raises(TypeError, match=r"registers namespaces, not object.*register_adapter"):
        store.register(other)
