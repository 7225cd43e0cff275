"""A prompt that takes long says how far it is, so that silence means an end."""

from typing import Any

import pytest

from kit.drive import random_tokens, request
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.identity.namespace import NOWHERE


def test_a_long_prompt_says_how_far_it_is(
    model: Any,
    cache: PrefixCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "omlx_cache")
    for pause in (3600.0, 0.0):
        monkeypatch.setattr("omlx_cache.requests.log.PROGRESS_SECONDS", pause)
        request(model, cache, random_tokens(96, int(pause)), step=32)
    said = [line for line in caplog.messages if "so far" in line]
    assert said == [f"request 2: {done} of 96 tokens computed so far" for done in (32, 64)]


def test_a_request_that_a_batch_computes_is_live_without_a_session(store: BlockStore) -> None:
    asked = store.requests.ask(NOWHERE, 300)
    assert store.stats().requests.live_sessions == 1
    asked.ended(0)
    assert store.stats().requests.live_sessions == 0
