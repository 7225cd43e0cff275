"""What happens again and again: a template that rewrites history, a line that keeps changing."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kit import zoo
from kit.drive import decode, prefill, random_tokens
from kit.restoring import HYBRID
from omlx_cache import BlockStore, PrefixCache

OPENING = [7, 8, 9]
"""How each prompt ends that asks for an answer; the next one has the first of these tokens only."""
KEPT = OPENING[:1]
ANSWER = 70

Opener = Callable[..., BlockStore]


def converse(cache: PrefixCache, model: Any, turns: int, seed: int = 0) -> list[tuple[int, int]]:
    """A chat whose template drops the opening and the reasoning of earlier answers: the length of
    each prompt, and what was restored of it."""
    history = random_tokens(100, seed)
    found = []
    for turn in range(turns):
        history += random_tokens(40, 100 * seed + 10 + turn)
        prompt = history + OPENING
        with cache.session(prompt) as session:
            answered = prefill(model, session, 64)
            decode(model, session, answered, ANSWER)
            session.commit()
        found.append((len(prompt), session.cached_tokens))
        history += KEPT + answered.answer[-20:]
    return found


def test_a_hybrid_gets_a_snapshot_where_rewritten_prompts_part(open_store: Opener) -> None:
    model = zoo.build(HYBRID)
    turns = converse(PrefixCache(model, open_store()), model, 6)
    shared = [length - len(OPENING) + len(KEPT) for length, _ in turns]
    restored = [cached for _, cached in turns]
    # Two turns show what the template does; from the third on each has its snapshot.
    assert restored[4:] == shared[3:5]
    assert restored[1] < shared[0]


def test_the_reason_is_the_template_and_not_the_snapshot(open_store: Opener) -> None:
    model = zoo.build(HYBRID)
    store = open_store()
    converse(PrefixCache(model, store), model, 3)
    told = [asked.explanation for asked in store.requests.latest()]
    assert [t and t.reason for t in told] == ["new_text", "rewritten", "rewritten"]
    assert "rewrote the history" in str(told[1])


def test_answers_that_come_back_as_they_were_get_no_place_of_their_own(
    open_store: Opener,
) -> None:
    model = zoo.build(HYBRID)
    store = open_store()
    cache = PrefixCache(model, store)
    history = random_tokens(100, 1)
    for turn in range(4):
        history += random_tokens(40, turn) + OPENING
        with cache.session(history) as session:
            answered = prefill(model, session, 64)
            decode(model, session, answered, ANSWER)
            session.commit()
        history += answered.answer
    (namespace,) = {asked.record.namespace for asked in store.requests.latest()}
    assert store.requests.opening(bytes.fromhex(namespace)) is None
    assert session.cached_tokens > 0


def test_answers_whose_end_is_trimmed_keep_their_place(open_store: Opener) -> None:
    model = zoo.build("qwen3")
    store = open_store(hot_cache_only=True)
    cache = PrefixCache(model, store)
    history = random_tokens(100, 1)
    for turn in range(4):
        history += random_tokens(40, turn) + OPENING
        with cache.session(history) as session:
            answered = prefill(model, session, 64)
            decode(model, session, answered, ANSWER)
            session.commit()
        history += answered.answer[:-2]
    told = store.requests.latest()[-1]
    assert told.explanation is not None
    assert told.explanation.reason == "rewritten"
    assert store.requests.opening(bytes.fromhex(told.record.namespace)) is None


@pytest.mark.parametrize("family", ["qwen3", HYBRID])
def test_answers_that_no_prompt_will_have_leave_memory_first(
    open_store: Opener, family: str
) -> None:
    model = zoo.build(family)
    store = open_store(hot_cache_only=True)
    cache = PrefixCache(model, store)
    converse(cache, model, 3)
    before = {entry.meta.id for entry in store.hot.entries()}
    turns = converse(cache, model, 1, seed=5)
    stable = turns[0][0] - len(OPENING) + len(KEPT)
    size = store.settings.block_size
    answers = {
        entry.meta.id: entry.meta.position
        for entry in store.hot.entries()
        if entry.meta.id not in before and entry.meta.position > -(-stable // size) * size
    }
    assert answers
    first = [entry.meta.id for entry in store.hot.entries()][: len(answers)]
    assert set(first) <= answers.keys() | before
    assert answers.keys() & set(first)


def test_what_remains_is_exact_after_the_answers_have_left(open_store: Opener) -> None:
    model = zoo.build("qwen3")
    store = open_store(hot_cache_only=True)
    cache = PrefixCache(model, store)
    turns = converse(cache, model, 4)
    length, restored = turns[-1]
    assert restored >= (turns[-2][0] - len(OPENING)) // 32 * 32
    assert length > restored


def spoil(cache: PrefixCache, model: Any, times: int, body: list[int]) -> None:
    head = random_tokens(14, 3)
    for number in range(times):
        with cache.session([*head, 100 + number, *body]) as session:
            prefill(model, session, 64)
            session.commit()


def test_a_line_that_spoils_prompt_after_prompt_is_said_once_with_its_cost(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    model, body = zoo.build("qwen3"), random_tokens(300, 4)
    cache = PrefixCache(model, open_store())
    with caplog.at_level(logging.WARNING):
        spoil(cache, model, 6, body)
    said = [r.getMessage() for r in caplog.records if "go on alike" in r.getMessage()]
    assert len(said) == 1
    assert "3 of the last 4 prompts part from one before at token 15" in said[0]
    assert f"{3 * 315} tokens computed so far" in said[0]
    (line,) = cache.store.why()["changing_lines"]
    assert (line["position"], line["requests"], line["of"]) == (14, 5, 5)
    assert line["tokens"] == 5 * 315
    assert line["seconds"] > 0


def test_prompts_of_several_people_are_no_changing_line(
    open_store: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    model, head = zoo.build("qwen3"), random_tokens(60, 3)
    cache = PrefixCache(model, open_store())
    with caplog.at_level(logging.WARNING):
        for number in range(6):
            with cache.session(head + random_tokens(300, 50 + number)) as session:
                prefill(model, session, 64)
                session.commit()
    assert not caplog.records
    assert cache.store.why()["changing_lines"] == []


def test_questions_that_differ_by_a_word_do_not_make_answers_leave_first(
    open_store: Opener,
) -> None:
    model, head = zoo.build("qwen3"), random_tokens(200, 3)
    store = open_store(hot_cache_only=True)
    cache = PrefixCache(model, store)
    for number in range(5):
        question = [20, 21, *range(50, 50 + number), 22]
        with cache.session(head + question + OPENING) as session:
            answered = prefill(model, session, 64)
            decode(model, session, answered, ANSWER)
            session.commit()
    told = store.requests.latest()[-1]
    assert told.explanation is not None
    assert told.explanation.reason != "rewritten"
    assert store.requests.opening(bytes.fromhex(told.record.namespace)) is None
