"""What looks like a hit and is not: each of these must be a miss with a reason."""

from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import KVCache, RotatingKVCache

from kit import zoo
from kit.drive import random_tokens, request
from kit.sessions import Opener
from omlx_cache import BlockStore, PrefixCache

PROMPT = random_tokens(150, 1)


def with_change(model: nn.Module, path: str, index: int) -> nn.Module:
    """Add one to a single value of one parameter, in place."""
    flat = dict(tree_flatten(model.parameters()))
    value = flat[path].reshape(-1)
    value[index] = value[index] + 1
    model.update(tree_unflatten([(path, value.reshape(flat[path].shape))]))
    mx.eval(model.parameters())
    return model


@pytest.mark.parametrize(
    ("path", "index"),
    [
        ("model.layers.0.self_attn.q_proj.weight", 17),
        ("model.layers.1.input_layernorm.weight", 0),
        ("lm_head.weight", -1),
    ],
)
def test_one_changed_weight_is_another_model(store: BlockStore, path: str, index: int) -> None:
    model = zoo.build("llama")
    request(model, PrefixCache(model, store), PROMPT)
    assert request(model, PrefixCache(model, store), PROMPT, commit=False).cached == 149
    other = with_change(zoo.build("llama"), path, index)
    assert request(other, PrefixCache(other, store), PROMPT, commit=False).cached == 0


class Wide(nn.Module):
    """Something with one parameter of 8 MB, which is sampled rather than read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = mx.zeros((2048, 1024))


@pytest.mark.parametrize("index", [0, -1])
def test_a_changed_sample_of_a_large_weight_is_another_model(index: int) -> None:
    from omlx_cache.identity.fingerprint import fingerprint_model

    assert fingerprint_model(Wide()) == fingerprint_model(Wide())
    changed = with_change(Wide(), "weight", index)
    assert fingerprint_model(changed) != fingerprint_model(Wide())


def test_another_architecture_is_another_namespace(
    model: Any, store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    request(model, PrefixCache(model, store), PROMPT)
    monkeypatch.setattr("omlx_cache.scope.architecture", lambda: "gpu sm_90")
    assert request(model, PrefixCache(model, store), PROMPT, commit=False).cached == 0


def test_another_layout_of_the_same_model_finds_nothing_and_spoils_nothing(
    store: BlockStore,
) -> None:
    model = zoo.build("llama")

    def make(window: int) -> list[Any]:
        layers = range(len(model.layers))
        return [RotatingKVCache(512) if n == window else KVCache() for n in layers]

    for again in (False, True):
        for window in (0, 1):
            cache = PrefixCache(model, store, make_cache=partial(make, window))
            assert request(model, cache, PROMPT).cached == again * (len(PROMPT) - 1)


def test_other_extra_keys_restore_nothing(model: Any, cache: PrefixCache) -> None:
    request(model, cache, PROMPT, extra={"image": "a"})
    assert request(model, cache, PROMPT, extra={"image": "b"}, commit=False).cached == 0
    assert request(model, cache, PROMPT, commit=False).cached == 0
    assert request(model, cache, PROMPT, extra={"image": "a"}, commit=False).cached == 149


def test_another_block_size_or_codec_finds_nothing(model: Any, open_store: Opener) -> None:
    request(model, PrefixCache(model, open_store()), PROMPT)
    for fields in ({"block_size": 64}, {"codec": "affine8"}):
        turn = request(model, PrefixCache(model, open_store(**fields)), PROMPT, commit=False)
        assert turn.cached == 0


def test_clear_deletes_all_of_a_tenant_and_what_earlier_processes_left(
    model: Any, open_store: Opener
) -> None:
    cache = PrefixCache(model, open_store())
    for extra in (None, {"rope": "a"}, {"rope": "b"}):
        request(model, cache, PROMPT, salt="a", extra=extra)
    request(model, cache, PROMPT, salt="b")
    assert cache.store.flush(30)
    again = PrefixCache(model, open_store())
    assert again.clear(salt="a", extra={"rope": "a"}) == 5
    assert again.clear(salt="a") == 10
    assert again.lookup(PROMPT, salt="a").cached_tokens == 0
    assert again.lookup(PROMPT, salt="a", extra={"rope": "b"}).cached_tokens == 0
    assert again.lookup(PROMPT, salt="b").cached_tokens == 149
