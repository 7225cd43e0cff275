import random

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.tools.demo.errors import DemoError
from omlx_cache.tools.demo.prompts import make_prompts
from omlx_cache.tools.demo.subject import VOCABULARY, small_model


@given(st.lists(st.integers(0, 3), max_size=1500), st.sampled_from([16, 64, 256]))
def test_the_prompts_share_whole_blocks_of_the_first_half_and_no_token_more(
    tokens: list[int], block_size: int
) -> None:
    if len(tokens) < 2 * block_size:
        with pytest.raises(DemoError, match=str(2 * block_size)):
            make_prompts(tokens, block_size)
        return
    prompts = make_prompts(tokens, block_size)
    assert prompts.first == tokens
    assert len(prompts.second) == len(tokens)
    assert 0 < prompts.shared <= len(tokens) // 2
    assert prompts.shared % block_size == 0
    assert prompts.first[: prompts.shared] == prompts.second[: prompts.shared]
    assert prompts.first[prompts.shared] != prompts.second[prompts.shared]
    assert list(prompts.ends) == sorted(set(prompts.ends))
    assert {prompts.shared, len(tokens) - 1, len(tokens)} <= set(prompts.ends)


@pytest.mark.nightly
def test_one_other_token_anywhere_changes_what_the_small_model_says() -> None:
    """Else the demo could not tell a wrong restore from a right one."""
    model = small_model()
    draw = random.Random(3)
    prompt = [draw.randrange(VOCABULARY) for _ in range(600)]
    said = _greedy(model, prompt)
    assert len(set(said)) > 6
    for place in (3, 200, 400, 590):
        other = [*prompt]
        other[place] = (other[place] + 1) % VOCABULARY
        assert _greedy(model, other) != said


def _greedy(model: object, tokens: list[int], count: int = 24) -> list[int]:
    cache = make_prompt_cache(model)
    made: list[int] = []
    feed = tokens
    for _ in range(count):
        logits = model(mx.array([feed]), cache=cache)  # type: ignore[operator]
        made.append(int(mx.argmax(logits[0, -1]).item()))
        feed = made[-1:]
    return made
