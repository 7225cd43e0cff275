"""`omlx_cache.kv`: working caches that give mlx-lm's bits, however they allocate; and they are what
a session restores into as well as mlx-lm's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import cache as upstream

from contract.driving import BLOCK, compute, logits_of
from kit import zoo
from omlx_cache import BlockStore, PrefixCache, kv

TOKENS = mx.random.randint(0, 250, (150,), key=mx.random.key(5)).tolist()


def run(model: Any, caches: list[Any]) -> bytes:
    """The bits of all logits of a prefill in chunks and some single steps."""
    sizes, at, said = [64, 40, 30, *[1] * 16], 0, []
    for size in sizes:
        said.append(np.array(logits_of(model, TOKENS[at : at + size], caches).view(mx.uint8)))
        at += size
    return b"".join(part.tobytes() for part in said)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_prompt_caches_give_the_bits_of_mlx_lms(family: str) -> None:
    model = zoo.build(family)
    right = run(model, upstream.make_prompt_cache(model))
    for options in ({}, {"max_context": 150}, {"step": 32}):
        caches = kv.make_prompt_cache(model, **options)
        for ours, theirs in zip(caches, upstream.make_prompt_cache(model), strict=True):
            assert isinstance(ours, type(theirs))
        assert run(model, list(caches)) == right
    with pytest.warns(kv.CapacityWarning):
        assert run(model, list(kv.make_prompt_cache(model, max_context=60))) == right


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: kv.KVCache(), upstream.KVCache),
        (lambda: kv.KVCache(max_size=200), upstream.KVCache),
        (lambda: kv.KVCache(step=16), upstream.KVCache),
        (
            lambda: kv.QuantizedKVCache(group_size=32, bits=8),
            lambda: upstream.QuantizedKVCache(group_size=32, bits=8),
        ),
        (lambda: kv.RotatingKVCache(max_size=40), lambda: upstream.RotatingKVCache(max_size=40)),
        (
            lambda: kv.RotatingKVCache(max_size=40, keep=4),
            lambda: upstream.RotatingKVCache(max_size=40, keep=4),
        ),
    ],
)
def test_each_cache_returns_what_mlx_lms_returns(
    ours: Callable[[], Any], theirs: Callable[[], Any]
) -> None:
    mine, other = ours(), theirs()
    for number, size in enumerate([30, 20, *[1] * 40]):
        keys, values = mx.random.normal((2, 1, 2, size, 32), key=mx.random.key(number))
        for a, b in zip(
            flat(mine.update_and_fetch(keys, values)),
            flat(other.update_and_fetch(keys, values)),
            strict=True,
        ):
            assert mx.array_equal(a, b).item()
        assert mine.offset == other.offset
    if mine.is_trimmable():
        assert mine.trim(5) == other.trim(5) == 5
        assert mine.offset == other.offset


def flat(pair: Any) -> list[mx.array]:
    return [part for side in pair for part in (side if isinstance(side, tuple | list) else [side])]


def test_a_cache_that_knows_its_size_allocates_once() -> None:
    cache = kv.KVCache(max_size=100)
    for size in (30, 1, 1, 68):
        keys, values = mx.random.normal((2, 1, 2, size, 32))
        cache.update_and_fetch(keys, values)
        assert cache.keys.shape[2] == 100


def test_a_pool_of_slots_gives_the_bits_of_single_caches() -> None:
    model = zoo.build("llama")
    (layer, *_) = alone = upstream.make_prompt_cache(model)
    right = run(model, alone)
    pool = kv.KVCacheManager(
        max_batch_size=2,
        num_layers=len(alone),
        max_seq_len=256,
        num_kv_heads=layer.keys.shape[1],
        head_dim=layer.keys.shape[3],
        dtype=layer.keys.dtype,
    )
    first, second = pool.allocate_sequence(200), pool.allocate_sequence(200)
    assert run(model, pool.views(second)) == right
    assert pool.get_seq_len(second) == 150
    assert pool.get_seq_len(first) == 0
    with pytest.raises(kv.NoFreeSlotError):
        pool.allocate_sequence(10)
    pool.release_sequence(first)
    assert pool.free_slots == 1
    with pytest.raises(kv.UnknownSequenceError):
        pool.get_seq_len(first)


def test_sessions_restore_into_working_caches(
    open_store: Callable[..., BlockStore], tmp_path: Path
) -> None:
    model = zoo.build("llama")
    tokens = TOKENS[: 3 * BLOCK + 1]
    store = open_store()
    cache = PrefixCache(model, store, make_cache=lambda: list(kv.make_prompt_cache(model)))
    turns = [compute(model, cache, tokens) for _ in range(2)]
    plain = PrefixCache(model, open_store(cold_dir=tmp_path / "plain"))
    turns += [compute(model, plain, tokens) for _ in range(2)]
    assert [turn.cached for turn in turns] == [0, 3 * BLOCK, 0, 3 * BLOCK]
    last = {np.array(turn.logits[-1][-1].view(mx.uint8)).tobytes() for turn in turns[1::2]}
    assert len(last) == 1
