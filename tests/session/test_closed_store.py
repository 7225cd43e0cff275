"""A closed store says that it is closed, not that a prompt was never seen."""

from typing import Any

import pytest

from kit.drive import prefill, random_tokens, request
from omlx_cache import BlockStore, PrefixCache

PROMPT = random_tokens(100, 1)


@pytest.mark.parametrize("tokens", [PROMPT, PROMPT[:3]], ids=["blocks", "a tail"])
def test_a_request_after_close_misses_because_the_store_is_closed(
    model: Any, cache: PrefixCache, store: BlockStore, tokens: list[int]
) -> None:
    request(model, cache, tokens)
    begun = cache.begin([*tokens, 1])
    assert begun.wait(30)
    store.close()
    assert cache.lookup([*tokens, 1]).miss_reason == "store_closed"
    with cache.session([*tokens, 1], begun=begun) as session:
        # Closing gave back what was read ahead.
        assert (session.cached_tokens, session.miss_reason) == (0, "store_closed")
    begun = cache.begin([*tokens, 1])
    assert begun.ready
    with cache.session([*tokens, 1], begun=begun) as session:
        assert (session.cached_tokens, session.miss_reason) == (0, "store_closed")
    with cache.session([*tokens, 1]) as session:
        assert (session.cached_tokens, session.miss_reason) == (0, "store_closed")
        turn = prefill(model, session, 32)
        assert sum(map(len, turn.steps)) == len(tokens) + 1
    assert store.stats().requests.misses["store_closed"] >= 2


def test_a_commit_after_close_stores_nothing_and_says_why(
    model: Any, cache: PrefixCache, store: BlockStore
) -> None:
    with cache.session(PROMPT) as session:
        prefill(model, session, 32)
        store.close()
        result = session.commit()
    assert (result.pages, result.skipped) == (0, {"store_closed": 1})
