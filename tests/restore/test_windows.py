"""Window groups: whatever the block size, a restore goes on as the live cache does."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from kit.drive import decode, feed, prefill, random_tokens, request, same
from kit.examples import examples, some
from omlx_cache import BlockStore, PrefixCache

WINDOW = 64
SALTS = count()
BLOCKS = (16, 48, 64, 80, 256)


def rings(model: Any) -> list[Any]:
    """Rings with sinks: what `max_kv_size` makes of a model of plain layers."""
    return list(make_prompt_cache(model, max_kv_size=WINDOW))


MODELS: dict[str, tuple[Any, Callable[[Any], list[Any]]]] = {
    "llama with max_kv_size": (zoo.build("llama"), rings),
    "gemma3_text": (zoo.build("gemma3_text"), make_prompt_cache),
    "gpt_oss": (zoo.build("gpt_oss"), make_prompt_cache),
    "llama4": (zoo.build("llama4"), make_prompt_cache),
    "recurrent_gemma": (zoo.build("recurrent_gemma"), make_prompt_cache),
}


@pytest.mark.parametrize("name", some(MODELS, "llama with max_kv_size"))
@hypothesis_settings(
    max_examples=examples(15),
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    block=st.sampled_from(BLOCKS),
    prompt=st.integers(2, 300),
    step=st.sampled_from([7, 40, 64, 100, 512]),
    answer=st.integers(0, 90),
    suffix=st.sampled_from([1, 2, 30]),
)
def test_the_second_turn_goes_on_as_the_live_cache_would(
    stores: dict[int, BlockStore],
    name: str,
    block: int,
    prompt: int,
    step: int,
    answer: int,
    suffix: int,
) -> None:
    model, make = MODELS[name]
    cache = PrefixCache(model, stores[block], make_cache=lambda: make(model))
    salt = str(next(SALTS))
    with cache.session(random_tokens(prompt, prompt), salt=salt) as session:
        turn = prefill(model, session, step)
        decode(model, session, turn, answer)
        session.commit()
    tokens = session.tokens + random_tokens(suffix, 5)
    second = request(model, cache, tokens, step=step, salt=salt, commit=False)
    assert second.cached == prompt + answer
    live = [feed(model, session.prompt_cache, step) for step in second.steps]
    assert same(second.logits, live)
    repeat = request(model, cache, session.tokens, step=step, salt=salt, commit=False)
    has_state = name == "recurrent_gemma"
    if answer == 0 or not has_state:
        assert repeat.cached == prompt + answer - 1
    cache.clear(salt=salt)


def test_a_page_of_a_short_window_holds_no_more_than_the_window(
    stores: dict[int, BlockStore],
) -> None:
    model, make = MODELS["gpt_oss"]
    cache = PrefixCache(model, stores[256], make_cache=lambda: make(model))
    salt = str(next(SALTS))
    request(model, cache, random_tokens(600, 1), step=128, salt=salt)
    held = {
        (meta.group, meta.position): meta.held
        for meta in (entry.meta for entry in stores[256].hot.entries())
    }
    assert held == {
        ("paged", 256): 256,
        ("paged", 512): 256,
        ("paged", 600): 88,
        ("window64", 512): 65,
        ("window64", 600): 65,
    }
    cache.clear(salt=salt)


def test_windows_are_kept_at_restore_points_only(stores: dict[int, BlockStore]) -> None:
    model, make = MODELS["gemma3_text"]
    store = stores[16]
    cache = PrefixCache(model, store, make_cache=lambda: make(model))
    salt = str(next(SALTS))
    prompt = random_tokens(400, 1)
    request(model, cache, prompt, salt=salt)
    kept = {e.meta.position for e in store.hot.entries() if e.meta.group == "window64"}
    assert kept == {320, 336, 352, 368, 384, 400}
    turn = request(model, cache, [*prompt, 1, 2, 3], salt=salt, commit=False)
    assert turn.cached == 400
    cache.clear(salt=salt)


@pytest.mark.parametrize("name", ["llama with max_kv_size", "gemma3_text"])
@pytest.mark.parametrize("answer", [63, 80, 130])
def test_an_exact_repeat_of_an_answer_has_the_rings_of_the_live_run(
    name: str, answer: int, stores: dict[int, BlockStore]
) -> None:
    model, make = MODELS[name]
    cache = PrefixCache(model, stores[48], make_cache=lambda: make(model))
    tokens, salt = random_tokens(100 + answer, answer), f"repeat {next(SALTS)}"
    with cache.session(tokens[:100], salt=salt) as session:
        prefill(model, session, 40)
        for token in tokens[100:]:
            rings_before = [getattr(one, "_idx", None) for one in session.prompt_cache]
            live = feed(model, session.prompt_cache, [token])
            session.append(token)
        session.commit()
    with cache.session(tokens, salt=salt) as session:
        assert session.cached_tokens == len(tokens) - 1
        assert [getattr(one, "_idx", None) for one in session.prompt_cache] == rings_before
        assert same([feed(model, session.prompt_cache, tokens[-1:])], [live])
