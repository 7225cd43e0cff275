"""The judge can fail: `Arithmetic.wrong` notices one wrong number in every kind of cache."""

from typing import Any

import mlx.core as mx
import pytest

from contract.arithmetic import KEEP, WINDOW, Arithmetic, tokens_of

TOKENS = tokens_of(0, 100)


@pytest.mark.parametrize("kind", ["kv", "window", "keep", "state"])
@pytest.mark.parametrize("step", [1, 32])
def test_an_uninterrupted_run_is_right_and_nothing_else(kind: str, step: int) -> None:
    model = Arithmetic([kind])
    assert model.wrong(model.make_cache(), TOKENS, 0) == ""
    for count in (1, KEEP, WINDOW, WINDOW + 1, 100):
        caches = model.run(TOKENS[:count], step)
        assert model.wrong(caches, TOKENS, count) == ""
        assert model.wrong(caches, TOKENS, count - 1) != ""
        assert model.wrong(caches, [TOKENS[0] + 1, *TOKENS[1:]], 1) != ""


@pytest.mark.parametrize("kind", ["kv", "window", "keep", "state"])
def test_one_wrong_number_is_noticed(kind: str) -> None:
    model = Arithmetic([kind])
    (cache,) = model.run(TOKENS)
    if kind == "state":
        cache[1] = cache[1] + mx.zeros(cache[1].shape).at[0, 2, 1].add(1).astype(mx.bfloat16)
    else:
        cache.values[0, 1, cache.values.shape[2] - 1, 3] = 126
        cache.values[0, 1, cache.values.shape[2] // 2, 3] = 126
        cache.values[0, 1, 99 if kind == "kv" else 5, 3] = 126
    assert model.wrong([cache], TOKENS, 100) != ""


@pytest.mark.parametrize("kind", ["window", "keep"])
def test_a_window_that_lacks_a_token_is_noticed(kind: str) -> None:
    model = Arithmetic([kind])
    (cache,) = model.run(TOKENS)
    cache.keys = shortened(cache.keys)
    cache.values = shortened(cache.values)
    assert "lacks" in model.wrong([cache], TOKENS, 100)


def shortened(array: Any) -> Any:
    return mx.concatenate([array[:, :, :-9], array[:, :, -8:]], axis=2)
