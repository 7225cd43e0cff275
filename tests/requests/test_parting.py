"""Where two prompts part: what tells a rewritten answer and a changed line from other text."""

import pytest

from omlx_cache.requests.parting import goes_on_alike, opening
from omlx_cache_storage.keys import as_tokens, shared_length

SYSTEM = list(range(1000, 1040))
ASKED = [1, 2, 3]
"""How a user's text begins: role and line end."""
ENDED = [4, 5, 6, 7, 8]
"""What follows the user's text: end of turn, role, the tag that opens reasoning."""
ANSWER = list(range(600, 660))


def parts(theirs: list[int], prompt: int, ours: list[int]) -> int | None:
    one, other = as_tokens(theirs), as_tokens(ours)
    return opening(one, prompt, other, shared_length(one, other))


@pytest.mark.parametrize("inserted", [[30], [30, 31, 32], [22, 30], [20, 21, 22, 23]])
def test_a_word_more_in_the_question_is_no_rewritten_answer(inserted: list[int]) -> None:
    """ "Tell me a fable", then "Tell me a fast fable": two chats, and no answer was sent back."""
    first = [*SYSTEM, *ASKED, 20, 21, 22, 23, *ENDED]
    second = [*SYSTEM, *ASKED, 20, 21, 22, *inserted, 23, *ENDED]
    assert parts(first + ANSWER, len(first), second) is None


def test_a_text_that_goes_on_behind_the_whole_prompt_is_no_rewritten_answer() -> None:
    assert parts(SYSTEM + ANSWER, len(SYSTEM), [*SYSTEM, *range(20, 60)]) is None
    assert parts([*SYSTEM, 4], len(SYSTEM), [*SYSTEM, 9, 4, 3]) is None


@pytest.mark.parametrize("kept", [2, 3, 5])
def test_an_answer_without_its_reasoning_is_rewritten(kept: int) -> None:
    first = [*SYSTEM, *ASKED, 20, 21, 22, 23, *ENDED]
    returned = first[: len(first) - len(ENDED) + kept] + ANSWER[-10:]
    second = [*returned, 4, *ASKED, 30, 31, *ENDED]
    assert parts(first + ANSWER, len(first), second) == len(ENDED) - kept


def test_an_answer_whose_end_is_trimmed_is_rewritten() -> None:
    first = [*SYSTEM, *ASKED, 20, 21, *ENDED]
    second = [*first, *ANSWER[:20], 4, *ASKED, 30, *ENDED]
    assert parts(first + ANSWER, len(first), second) == -20


def alike(one: list[int], other: list[int]) -> bool:
    first, second = as_tokens(one), as_tokens(other)
    return goes_on_alike(first, second, shared_length(first, second))


def test_a_changed_line_leaves_the_text_behind_it_alike() -> None:
    body = list(range(2000, 4000))
    assert alike([*SYSTEM, 7, *body], [*SYSTEM, 8, 9, *body])
    changed_twice = [*SYSTEM, 8, *body[:200], 9, 9, *body[200:]]
    assert alike([*SYSTEM, 7, *body], changed_twice)


def test_the_same_closing_words_behind_another_question_are_not_alike() -> None:
    head, closing = list(range(2000, 4000)), list(range(5000, 5100))
    assert not alike([*head, 7, *closing], [*head, 8, *closing])
