"""A request that adds nothing costs its commit nothing: what a tier has is not cut again."""

from typing import Any

import mlx.core as mx
import pytest

from kit import zoo
from kit.drive import prefill, random_tokens, request
from kit.examples import some
from kit.sessions import Opener
from omlx_cache import PrefixCache
from omlx_cache.commit import committer

PROMPT = random_tokens(320, 1)


@pytest.mark.parametrize("family", some(["llama", "gemma3_text", "qwen3_next"], "qwen3_next"))
@pytest.mark.parametrize("hot_bytes", ["256MiB", 0])
def test_after_a_cold_restore_a_commit_cuts_no_page_that_is_on_the_disk(
    family: str, hot_bytes: Any, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.build(family)
    store = open_store(hot_bytes=hot_bytes)
    request(model, PrefixCache(model, store), PROMPT)
    assert store.flush(30)
    store = open_store(hot_bytes=hot_bytes)
    cut: list[int] = []

    class Counting(committer.Cutter):
        def payloads(self, cuts: Any) -> list[mx.array]:
            cut.append(sum(c.tensors.nbytes for c in cuts))
            return super().payloads(cuts)

    monkeypatch.setattr(committer, "Cutter", Counting)
    with PrefixCache(model, store).session(PROMPT) as session:
        assert session.cached_tokens == len(PROMPT) - 1
        assert session.cached_cold_tokens > 0
        prefill(model, session, 64)
        result = session.commit()
    # At most what the one computed token made new: an end of its own for windows and state.
    assert result.pages <= 3
    assert sum(cut) <= 64 * 1024
    assert store.stats().writer is not None
