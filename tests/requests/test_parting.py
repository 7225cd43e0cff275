"""Where two prompts part: what tells a rewritten answer and a changed line from other text."""

import pytest

from omlx_cache.requests.explainer import KnownPrompt, Nearest
from omlx_cache_storage.keys import BlockKey, as_tokens, shared_length

SYSTEM = list(range(1000, 1040))
ASKED = [1, 2, 3]
"""How a user's text begins: role and line end."""
ENDED = [4, 5, 6, 7, 8]
"""What follows the user's text: end of turn, role, the tag that opens reasoning."""
ANSWER = list(range(600, 660))


def nearest(theirs: list[int], prompt: int, ours: list[int]) -> Nearest:
    tokens = as_tokens(theirs)
    known = KnownPrompt(1, 0.0, BlockKey(b"a" * 32), tokens, prompt)
    return Nearest(known, shared_length(tokens, as_tokens(ours)))


def is_rewritten(theirs: list[int], prompt: int, ours: list[int]) -> bool:
    return nearest(theirs, prompt, ours).is_rewritten(as_tokens(ours))


@pytest.mark.parametrize("inserted", [[30], [30, 31, 32], [22, 30], [20, 21, 22, 23]])
def test_a_word_more_in_the_question_is_no_rewritten_answer(inserted: list[int]) -> None:
    """ "Tell me a fable", then "Tell me a fast fable": two chats, and no answer was sent back."""
    first = [*SYSTEM, *ASKED, 20, 21, 22, 23, *ENDED]
    second = [*SYSTEM, *ASKED, 20, 21, 22, *inserted, 23, *ENDED]
    assert not is_rewritten(first + ANSWER, len(first), second)


def test_a_text_that_goes_on_behind_the_whole_prompt_is_no_rewritten_answer() -> None:
    assert not is_rewritten(SYSTEM + ANSWER, len(SYSTEM), [*SYSTEM, *range(20, 60)])
    assert not is_rewritten([*SYSTEM, 4], len(SYSTEM), [*SYSTEM, 9, 4, 3])


@pytest.mark.parametrize("kept", [2, 3, 5])
def test_an_answer_without_its_reasoning_is_rewritten(kept: int) -> None:
    first = [*SYSTEM, *ASKED, 20, 21, 22, 23, *ENDED]
    returned = first[: len(first) - len(ENDED) + kept] + ANSWER[-10:]
    second = [*returned, 4, *ASKED, 30, 31, *ENDED]
    assert is_rewritten(first + ANSWER, len(first), second)


def test_an_answer_whose_end_is_trimmed_is_rewritten() -> None:
    first = [*SYSTEM, *ASKED, 20, 21, *ENDED]
    second = [*first, *ANSWER[:20], 4, *ASKED, 30, *ENDED]
    assert is_rewritten(first + ANSWER, len(first), second)


def is_alike(one: list[int], other: list[int]) -> bool:
    return nearest(one, len(one), other).is_alike(as_tokens(other))


def test_a_changed_line_leaves_the_text_behind_it_alike() -> None:
    body = list(range(2000, 4000))
    assert is_alike([*SYSTEM, 7, *body], [*SYSTEM, 8, 9, *body])
    changed_twice = [*SYSTEM, 8, *body[:200], 9, 9, *body[200:]]
    assert is_alike([*SYSTEM, 7, *body], changed_twice)


def test_the_few_words_that_close_every_prompt_are_not_alike() -> None:
    head, closing = list(range(2000, 4000)), list(range(5000, 5030))
    assert not is_alike([*head, 7, *closing], [*head, 8, *closing])
    assert not is_alike([*head, *range(6000, 6100)], [*head, *range(7000, 7100)])
