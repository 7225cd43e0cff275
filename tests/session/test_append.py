"""`append` between two blocks: one look at one layer, and right wherever it is interrupted."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kit import zoo
from kit.drive import chunks, decode, feed, prefill, random_tokens, request, run, same
from kit.examples import some
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.interrupts import deferred

PROMPT = random_tokens(100, 1)
ANSWER = random_tokens(12, 2)
MORE = random_tokens(30, 3)
KINDS = ["llama", "gemma3_text", "qwen3_next", "mamba2"]


class Interrupted(Exception):
    """What a handler of a signal may raise, anywhere."""


def steps_of(work: Callable[[], object], at: int = -1) -> int:
    """Count the lines of `append` and below at which handlers of signals may run; raise at one."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_name not in ("append", "follow", "position"):
            return None
        if event == "line" and not deferred.active:
            if count == at:
                raise Interrupted
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("family", some(KINDS, "llama"))
@pytest.mark.parametrize("ends", some([False, True], True))
def test_an_interrupt_anywhere_in_it_leaves_nothing_wrong_behind(
    family: str, ends: bool, store: BlockStore
) -> None:
    model = zoo.build(family)
    cache = PrefixCache(model, store)
    at, interrupts = 0, 1
    while interrupts:
        interrupts = 0
        with cache.session(PROMPT, salt=str(at)) as session:
            turn = prefill(model, session, 32)
            for token in ANSWER:
                feed(model, session.prompt_cache, [token])
                turn.steps.append([token])
                recorded = len(session.tokens)
                try:
                    steps_of(lambda token=token: session.append(token), at)
                except Interrupted:
                    interrupts += 1
                    if ends and interrupts > 4:
                        break
                    if len(session.tokens) == recorded:
                        session.append(token)
            assert session.tokens == (PROMPT + ANSWER)[: len(session.tokens)]
            assert "error" not in session.commit().skipped
        turn = request(model, cache, PROMPT + ANSWER + MORE, commit=False, salt=str(at))
        lead, left = [], turn.cached
        for step in [*chunks(PROMPT, 32), *([token] for token in ANSWER)]:
            lead.append(step[:left])
            left -= len(lead[-1])
        assert same(turn.logits, run(model, [step for step in lead if step] + turn.steps))
        at += 1
    assert at > 5
    assert turn.cached == len(PROMPT + ANSWER)


def test_a_layer_that_fell_behind_is_found_where_a_block_ends_and_at_the_commit(
    store: BlockStore,
) -> None:
    model = zoo.build("llama")
    for more in (5, 60):
        cache = PrefixCache(model, store)
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
