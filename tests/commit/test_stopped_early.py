"""A request that is cancelled in its prefill and then committed: stored, and nothing rejected."""

from collections.abc import Callable
from typing import Any

import pytest

from kit import zoo
from kit.drive import feed, random_tokens, request
from kit.examples import some
from omlx_cache import BlockStore, PrefixCache, Session

PROMPT = random_tokens(100, 1)


@pytest.fixture(params=some(["llama", "gemma3_text", "qwen3_next", "mamba2"], "mamba2"))
def model(request: pytest.FixtureRequest) -> Any:
    """One family of each kind of layer group."""
    return zoo.build(request.param)


def by_chunks(model: Any, session: Session) -> None:
    chunks = session.prefill_chunks(32)
    for _ in range(2):
        feed(model, session.prompt_cache, next(chunks))
    next(chunks)


def by_a_loop_of_its_own(model: Any, session: Session) -> None:
    for position in (32, 64):
        assert session.next_stop(32) == 32
        feed(model, session.prompt_cache, PROMPT[position - 32 : position])
        session.checkpoint(position)


@pytest.mark.parametrize("prefill", [by_chunks, by_a_loop_of_its_own])
def test_a_request_cancelled_in_its_prefill_rejects_nothing(
    model: Any, cache: PrefixCache, store: BlockStore, prefill: Callable[[Any, Session], None]
) -> None:
    with cache.session(PROMPT) as session:
        prefill(model, session)
        result = session.commit()
    assert (result.tokens, result.skipped) == (64, {})
    requests = store.stats().requests
    assert (requests.commits, requests.rejected_pages, requests.skips) == (1, 0, {})
    assert requests.stored_pages == result.pages > 0
    assert request(model, cache, PROMPT, commit=False).cached == 64
