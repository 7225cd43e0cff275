"""Which tokens a session takes, and that it never raises for the others."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kit.drive import feed, prefill, random_tokens, request
from omlx_cache import PrefixCache

PROMPT = random_tokens(70, 1)


@pytest.mark.parametrize(
    "tokens",
    [
        [1.0, 2.0, 3.0],
        ["a", "b"],
        "abc",
        [1, 2, 2**70],
        [1, 2, 2**63],
        [[1, 2], [3, 4]],
        [[1, 2], [3]],
        [None, 1],
        [True, False],
        [1, 2, float("nan")],
        np.array([1.5, 2.5]),
        mx.array([1.0, 2.0]),
        mx.array([[1, 2, 3]]),
        None,
        {"a": 1},
        {1: 2},
        {3},
        b"abc",
        bytearray(b"abc"),
        5,
        object(),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_tokens_that_are_no_integers_are_a_miss_and_nothing_is_stored(
    cache: PrefixCache, tokens: Any
) -> None:
    with cache.session(tokens) as session:
        assert session.cached_tokens == 0
        assert session.miss_reason.startswith("bad_tokens")
        assert session.commit().pages == 0
    assert cache.store.stats().hot.pages == 0


@pytest.mark.parametrize("token", [2**63, -(2**63) - 1, 2**70])
@pytest.mark.parametrize("others", [[], [1], [-1]])
def test_a_token_that_is_too_large_is_said_to_be(
    cache: PrefixCache, token: int, others: list[int]
) -> None:
    wanted = f"from -2**63 to 2**63 - 1, got the token {token}"
    assert wanted in str(cache.session([*others, token]).miss_reason)


@pytest.mark.parametrize("tokens", [5, None, b"abc", {1: 2}, []])
def test_what_is_no_sequence_has_no_token_to_compute(cache: PrefixCache, tokens: Any) -> None:
    begun = cache.begin(PROMPT)
    with cache.session(tokens, begun=begun) as session:
        assert session.remaining_tokens == list(session.prefill_chunks()) == []
        assert not tokens or session.miss_reason.endswith(f"got {type(tokens).__name__}")
    assert cache.pin(tokens, ttl=5).reason == "give a flat list of tokens, a block or more"


@pytest.mark.parametrize(
    "kind",
    [
        tuple,
        np.array,
        mx.array,
        lambda tokens: np.array(tokens, dtype=np.uint16),
        lambda tokens: mx.array(tokens, dtype=mx.uint32),
        lambda tokens: [np.int64(token) for token in tokens],
    ],
)
def test_any_sequence_of_integers_means_the_same_tokens(
    model: Any, cache: PrefixCache, kind: Any
) -> None:
    request(model, cache, PROMPT)
    with cache.session(kind(PROMPT)) as session:
        assert session.cached_tokens == 69
        assert session.remaining_tokens == PROMPT[69:]
        assert type(session.remaining_tokens[0]) is int
        assert cache.lookup(kind(PROMPT)).cached_tokens == 69


@pytest.mark.parametrize(
    ("model", "is_dense"),
    [("llama", True), ("gemma3_text", False), ("qwen3_5", False), ("mamba", False)],
    indirect=["model"],
)
@pytest.mark.parametrize("fed_first", [True, False])
@pytest.mark.parametrize("guided", [True, False])
def test_a_wrong_token_ends_what_is_recorded_and_what_was_known_is_stored(
    model: Any, is_dense: bool, cache: PrefixCache, fed_first: bool, guided: bool
) -> None:
    answer = random_tokens(40, 2)
    with cache.session(PROMPT) as session:
        chunks = session.prefill_chunks() if guided else [PROMPT]
        for chunk in chunks:
            feed(model, session.prompt_cache, chunk)
        for index, token in enumerate(answer):
            told: Any = "5" if index == 3 else token
            if not fed_first:
                session.append(told)
            feed(model, session.prompt_cache, [token])
            if fed_first:
                session.append(told)
        session.checkpoint()
        result = session.commit()
        assert session.tokens == PROMPT + answer[:3]
    assert result.skipped["bad_tokens"] == 1
    if guided or (is_dense and fed_first):
        assert result.pages > 0
        assert cache.lookup([*PROMPT, 1]).cached_tokens >= len(PROMPT) - 1
    # The recorded tokens without the unknown one are another sequence: nothing of it is found.
    other = PROMPT + answer[:3] + answer[4:]
    assert cache.lookup(other).cached_tokens <= len(PROMPT) + 3
    with cache.session(other) as session:
        rest = session.remaining_tokens
        mine = feed(model, session.prompt_cache, rest)[-1]
        plain = feed(model, cache.fresh_cache(), other)[-1]
        assert mx.allclose(mine, plain, atol=1e-3)


@pytest.mark.parametrize(("model", "least"), [("llama", 96), ("mamba", 70)], indirect=["model"])
def test_what_is_right_before_a_wrong_token_is_recorded(
    model: Any, least: int, cache: PrefixCache
) -> None:
    answer = random_tokens(40, 2)
    wrong: Any = [*answer[:30], "x", *answer[30:]]
    with cache.session(PROMPT) as session:
        prefill(model, session, 512)
        feed(model, session.prompt_cache, answer[:30])
        session.checkpoint()
        session.extend(wrong)
        assert session.tokens == PROMPT + answer[:30]
        assert not cache.begin([*PROMPT, *answer]).held
        result = session.commit()
    assert result.skipped["bad_tokens"] == 1
    assert cache.lookup([*PROMPT, *answer]).cached_tokens >= least


@pytest.mark.parametrize("bad", [1.5, "x", None, 2**70, [1]])
def test_a_wrong_token_is_counted_each_time_and_costs_no_prompt(
    model: Any, cache: PrefixCache, bad: Any
) -> None:
    with cache.session(PROMPT) as session:
        prefill(model, session, 512)
        session.append(bad)
        session.extend([5, bad])
        session.append(5)
        result = session.commit()
        assert session.miss_reason == "absent"
    assert (result.tokens, result.pages) == (70, 3)
    assert result.skipped == {"bad_tokens": 1}
    assert cache.store.stats().requests.ignored_hints == 2
    assert cache.lookup([*PROMPT, 1]).cached_tokens == 70
