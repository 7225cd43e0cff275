"""After every kind of hit the next logits have the bits of an uninterrupted run."""

from collections.abc import Callable
from typing import Any

import pytest

from kit.drive import chunks, random_tokens, request, run, same
from kit.examples import some
from omlx_cache import BlockStore, PrefixCache

PROMPT = random_tokens(150, 1)
MORE = random_tokens(40, 2)

Opener = Callable[..., BlockStore]


def reference(model: Any, restored: int, turn: Any) -> list[Any]:
    """The logits of a run that takes PROMPT's chunks, then the steps of the restored run."""
    return run(model, [*chunks(PROMPT[:restored], 32), *turn.steps])


def test_hot_hit_continues_with_the_bits_of_an_uninterrupted_run(
    model: Any, cache: PrefixCache
) -> None:
    first = request(model, cache, PROMPT)
    assert first.cached == 0
    assert same(first.logits, run(model, chunks(PROMPT, 32)))
    turn = request(model, cache, PROMPT + MORE, new=8)
    assert (turn.cached, turn.reason) == (150, "absent")
    assert same(turn.logits, reference(model, 150, turn))


def test_exact_repeat_restores_all_but_the_last_token(model: Any, cache: PrefixCache) -> None:
    request(model, cache, PROMPT)
    turn = request(model, cache, PROMPT, new=8)
    assert (turn.cached, turn.reason) == (149, None)
    assert turn.steps[0] == PROMPT[149:]
    assert same(turn.logits, reference(model, 149, turn))


def test_cold_hit_after_reopening_continues_with_the_same_bits(
    model: Any, open_store: Opener
) -> None:
    request(model, PrefixCache(model, open_store()), PROMPT)
    store = open_store()
    turn = request(model, PrefixCache(model, store), PROMPT + MORE, new=8, commit=False)
    assert turn.cached == 150
    assert same(turn.logits, reference(model, 150, turn))
    assert store.stats().requests.restored_cold_tokens == 150


@pytest.mark.parametrize("lost", some(["hot", "cold", "both"], "hot"))
def test_eviction_of_a_tier_costs_tokens_but_never_bits(
    model: Any, open_store: Opener, lost: str
) -> None:
    store = open_store()
    cache = PrefixCache(model, store)
    request(model, cache, PROMPT)
    assert store.flush(30)
    if lost in ("hot", "both"):
        for entry in store.hot.entries():
            store.hot.discard([entry.meta.id])
    if lost in ("cold", "both"):
        store.cold.discard([entry.page for entry in store.cold.entries()])
    turn = request(model, cache, PROMPT + MORE, new=4, commit=False)
    assert turn.cached == (0 if lost == "both" else 150)
    assert same(turn.logits, reference(model, turn.cached, turn))


def test_budgets_that_hold_half_the_chain_keep_its_root(model: Any, open_store: Opener) -> None:
    store = open_store(hot_cache_only=True)
    request(model, PrefixCache(model, store), PROMPT)
    whole = store.stats().hot.nbytes
    store = open_store(hot_cache_only=True, hot_bytes=whole // 2)
    cache = PrefixCache(model, store)
    request(model, cache, PROMPT)
    assert store.stats().hot.nbytes <= whole // 2
    turn = request(model, cache, PROMPT + MORE, new=4)
    assert turn.cached == 64
    assert same(turn.logits, reference(model, 64, turn))
