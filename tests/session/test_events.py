"""What the log of events and the histograms tell of real sessions."""

from typing import Any

import mlx.core as mx
import pytest

from omlx_cache import BlockStore, PrefixCache


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_a_conversation_is_told_of_in_events_and_times(
    model: Any, store: BlockStore, cache: PrefixCache
) -> None:
    tokens = [number % 50 for number in range(200)]
    for _ in range(2):
        with cache.session(tokens) as session:
            for chunk in session.prefill_chunks(step=64):
                mx.eval(model(mx.array([chunk]), cache=session.prompt_cache))
            session.commit()
            cached = session.cached_tokens
    (restored,) = store.events.page(0, 1000, ["restored"]).events
    assert (restored.position, restored.tokens) == (len(tokens), cached)
    stored = store.events.page(0, 1000, ["stored"]).events
    assert {event.namespace for event in stored} == {restored.namespace}
    assert next(e.to_dict()["parent"] for e in stored if e.tier == "hot") is None
    histograms, requests = store.stats().histograms, store.stats().requests
    assert histograms["restore_seconds"].count == histograms["commit_seconds"].count == 2
    assert histograms["commit_seconds"].sum == requests.commit_seconds > 0
    assert histograms["prefill_seconds"].count == 2
    assert histograms["restored_tokens"].sum == requests.restored_tokens == cached
