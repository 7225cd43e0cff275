"""`session.evaluate()` computes the chunk that was fed, whatever the session knows of the cache."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from kit import zoo
from kit.drive import random_tokens
from omlx_cache import BlockStore, PrefixCache

PROMPT = random_tokens(500, 1)


class ForeignCache(KVCache):  # type: ignore[misc]
    """A class that no adapter reads."""


def foreign(model: Any) -> list[Any]:
    return [ForeignCache() for _ in model.layers]


@pytest.mark.parametrize("case", ["known", "foreign class", "bad tokens"])
def test_after_evaluate_the_cache_is_in_memory(case: str, store: BlockStore) -> None:
    model = zoo.build("llama")
    mx.eval(model.parameters())
    make = (lambda: foreign(model)) if case == "foreign class" else None
    cache = PrefixCache(model, store, make_cache=make)
    tokens: Any = ["no token"] if case == "bad tokens" else PROMPT
    with cache.session(tokens) as session:
        assert (session.miss_reason == "absent") is (case == "known")
        model(mx.array([PROMPT]), cache=session.prompt_cache)
        keys = session.prompt_cache[-1].keys
        before = mx.get_active_memory()
        session.evaluate()
        assert mx.get_active_memory() - before >= keys.nbytes
