"""A cache that is not where the session expects it: doubtful blocks are skipped, never guessed."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    ConcatenateKVCache,
    make_prompt_cache,
    trim_prompt_cache,
)

from kit import zoo
from kit.drive import chunks, decode, feed, prefill, random_tokens, request, run, same
from kit.examples import some
from kit.versions import keys_and_values
from omlx_cache import BlockStore, PrefixCache

PROMPT = random_tokens(100, 1)
MORE = random_tokens(30, 2)


KINDS = ["llama", "gemma3_text", "qwen3_next", "mamba2"]


@pytest.fixture(params=some(KINDS, "qwen3_next"))
def model(request: pytest.FixtureRequest) -> Any:
    """One family of each kind of layer group."""
    return zoo.build(request.param)


def test_a_recorded_token_that_was_never_fed_is_not_stored(model: Any, cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        prefill(model, session, 32)
        session.append(5)
        result = session.commit()
    assert result.skipped["position"] == 1
    assert result.tokens == 100
    turn = request(model, cache, [*PROMPT, 5, *MORE], commit=False)
    assert turn.cached <= 100
    # A full run takes three chunks, and what the request restored of the fourth.
    lead = [PROMPT[96 : turn.cached]] if turn.cached > 96 else []
    assert same(turn.logits, run(model, [*chunks(PROMPT, 32)][:3] + lead + turn.steps))


# A cache of recurrent state alone does not say how many tokens it has seen.
@pytest.mark.parametrize("model", some(KINDS[:3], "gemma3_text"), indirect=True)
def test_a_token_fed_but_not_recorded_ends_what_is_stored(model: Any, cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        turn = prefill(model, session, 32)
        feed(model, session.prompt_cache, [9])
        decode(model, session, turn, 40)
        session.commit()
    wrong = PROMPT + turn.answer
    assert request(model, cache, wrong + MORE, commit=False).cached <= 100


def test_commit_in_mid_prefill_stores_no_state_of_a_later_position(
    model: Any, cache: PrefixCache
) -> None:
    with cache.session(PROMPT) as session:
        steps = []
        for chunk in session.prefill_chunks(32):
            feed(model, session.prompt_cache, chunk)
            steps.append(chunk)
            if len(steps) == 2:
                break
        session.commit()
    turn = request(model, cache, PROMPT + MORE, commit=False)
    assert turn.cached <= 64
    assert same(turn.logits, run(model, [*chunks(PROMPT[: turn.cached], 32), *turn.steps]))


def test_a_prompt_fed_twice_is_not_stored(model: Any, cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        for chunk in session.prefill_chunks(50):
            feed(model, session.prompt_cache, chunk)
            feed(model, session.prompt_cache, chunk)
        session.commit()
    # Layers of recurrent state do not count their tokens.
    if not all(isinstance(cache, ArraysCache) for cache in make_prompt_cache(model)):
        assert request(model, cache, PROMPT + MORE, commit=False).cached == 0


@pytest.mark.parametrize("model", ["llama", "gemma3_text"], indirect=True)
def test_rejected_speculation_leaves_no_trace(model: Any, cache: PrefixCache) -> None:
    with cache.session(random_tokens(40, 4)) as session:
        turn = prefill(model, session, 32)
        steps = list(turn.steps)
        for round_ in range(6):
            draft = random_tokens(4, 50 + round_)
            feed(model, session.prompt_cache, draft)
            trim_prompt_cache(session.prompt_cache, 3)
            session.append(draft[0])
            steps.append(draft[:1])
        session.commit()
    fed = [token for step in steps for token in step]
    turn = request(model, cache, fed + MORE, commit=False)
    assert turn.cached == 46


@pytest.mark.parametrize("model", ["gemma3_text"], indirect=True)
def test_a_ring_that_was_trimmed_after_it_wrapped_is_not_trusted(
    model: Any, cache: PrefixCache
) -> None:
    with cache.session(PROMPT) as session:
        turn = prefill(model, session, 32)
        decode(model, session, turn, 10)
        for layer in session.prompt_cache:
            layer.trim(4)
        session.checkpoint()
        for token in MORE[:2]:
            feed(model, session.prompt_cache, [token])
        session.commit()
    turn = request(model, cache, PROMPT + turn.answer + MORE, commit=False)
    assert turn.cached <= 106


@pytest.mark.parametrize("spoil", ["trimmed", "batched"])
def test_a_cache_that_cannot_be_read_any_more_is_skipped(store: BlockStore, spoil: str) -> None:
    model = zoo.build("llama")
    cache = PrefixCache(model, store, make_cache=lambda: [ConcatenateKVCache() for _ in range(2)])
    with cache.session(PROMPT) as session:
        prefill(model, session, 32)
        for layer in session.prompt_cache:
            if spoil == "trimmed":
                layer.trim(3)
            else:
                layer.state = [mx.concatenate([side, side]) for side in keys_and_values(layer)]
        for token in MORE:
            session.append(token)
        session.checkpoint()
        result = session.commit()
    assert (result.pages, result.skipped) == (0, {"unsupported": 1})
    # What was stored before the cache was spoilt stays.
    assert request(model, cache, PROMPT + MORE).cached <= len(PROMPT)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_a_layer_that_fell_behind_is_found_where_a_block_ends_and_at_the_commit(
    model: Any, cache: PrefixCache
) -> None:
    for more in (5, 60):
        with cache.session(PROMPT, salt=str(more)) as session:
            turn = prefill(model, session, 32)
            decode(model, session, turn, 40)
            session.prompt_cache[-1].trim(1)
            decode(model, session, turn, more)
            session.commit()
        wrong = PROMPT + turn.answer
        again = request(model, cache, wrong + MORE, commit=False, salt=str(more))
        assert 128 <= again.cached <= 140
        fed = [*chunks(PROMPT, 32), *([token] for token in turn.answer[: again.cached - 100])]
        assert same(again.logits, run(model, fed + again.steps))
