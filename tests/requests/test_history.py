"""The history of prompts: what it finds, what it shares, and that it stays within its bytes."""

from typing import cast

import numpy as np
import pytest

from omlx_cache.requests.explainer import PROMPTS, Explainer, Nearest
from omlx_cache_storage.keys import BlockKey, as_tokens
from omlx_cache_storage.tiers import Tiers

ONE, OTHER = BlockKey(b"a" * 32), BlockKey(b"b" * 32)


def remembering(limit_bytes: int) -> Explainer:
    """What an explainer without tiers remembers."""
    return Explainer(limit_bytes, cast(Tiers, None))


def tokens(*parts: range) -> np.ndarray:
    return as_tokens([token for part in parts for token in part])


def nearest(history: Explainer, namespace: BlockKey, prompt: np.ndarray) -> Nearest:
    found = history.ask(None, namespace, prompt)
    assert found is not None
    return found


@pytest.fixture
def history() -> Explainer:
    return remembering(2**20)


def test_the_longest_shared_prompt_is_found_and_of_equals_the_latest(
    history: Explainer,
) -> None:
    history.ask(1, ONE, tokens(range(100)))
    history.ask(2, ONE, tokens(range(50), range(200, 250)))
    history.ask(3, ONE, tokens(range(50), range(300, 350)))
    found = nearest(history, ONE, tokens(range(50), range(400, 450)))
    assert (found.prompt.number, found.shared) == (3, 50)
    found = nearest(history, ONE, tokens(range(60), range(400, 450)))
    assert (found.prompt.number, found.shared) == (1, 60)


def test_turns_of_one_conversation_share_their_tokens(history: Explainer) -> None:
    for turn in range(1, 11):
        history.ask(turn, ONE, tokens(range(100 * turn)))
        history.store(ONE, tokens(range(100 * turn + 50)), 100 * turn + 50, {})
    assert history.nbytes == 4 * 1050
    found = nearest(history, ONE, tokens(range(350)))
    assert found.shared == 350


def test_two_answers_to_one_prompt_are_both_known(history: Explainer) -> None:
    prompt = tokens(range(100))
    for number, answer in ((1, range(500, 550)), (2, range(600, 650))):
        history.ask(number, ONE, prompt)
        history.store(ONE, tokens(range(100), answer), 150, {})
    for number, answer in ((1, range(500, 550)), (2, range(600, 650))):
        found = nearest(history, ONE, tokens(range(100), answer, range(10)))
        assert (found.prompt.number, found.shared) == (number, 150)


def test_it_stays_within_its_bytes_and_forgets_the_oldest() -> None:
    history = remembering(4 * 1000)
    for number in range(1, 21):
        history.ask(number, ONE, tokens(range(1000 * number, 1000 * number + 300)))
        assert history.nbytes <= 4 * 1000
    assert history.ask(None, ONE, tokens(range(1000, 1300))) is None
    found = nearest(history, ONE, tokens(range(20_000, 20_300)))
    assert found.prompt.number == 20


def test_short_prompts_are_bounded_in_number(history: Explainer) -> None:
    for number in range(PROMPTS + 10):
        history.ask(number, ONE, tokens(range(10 * number, 10 * number + 5)))
    assert history.nbytes == 4 * 5 * PROMPTS


def test_a_request_in_flight_keeps_its_own_prompt(history: Explainer) -> None:
    """A second one that goes on from its prompt does not take its place."""
    history.ask(1, ONE, tokens(range(100)))
    history.ask(2, ONE, tokens(range(100), range(700, 750)))
    history.store(ONE, tokens(range(100), range(500, 550)), 150, {})
    found = nearest(history, ONE, tokens(range(100), range(500, 550), range(10)))
    assert (found.prompt.number, found.is_continued) == (1, True)
