"""A real model's sequences in a store whose memory is full of what was used a short while ago."""

from pathlib import Path
from typing import Any

import pytest
from eviction.patient import PATIENCE_SECONDS, patient

from kit import zoo
from kit.drive import random_tokens, request, settings
from kit.storage import HandClock
from omlx_cache import BlockStore, PrefixCache, reasons

LENGTH = 1024


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx_cache.store.Keep", patient)


@pytest.fixture
def model() -> Any:
    return zoo.build("llama")


def test_without_a_disk_a_refused_sequence_is_skipped_with_that_reason(
    model: Any, tmp_path: Path
) -> None:
    with BlockStore(settings(tmp_path / "first", hot_cache_only=True)) as store:
        request(model, PrefixCache(model, store), random_tokens(LENGTH, 1), step=256)
        one, clock = store.hot.usage().nbytes, HandClock()
    fields = settings(tmp_path / "cold", hot_cache_only=True, hot_bytes=one + one // 20)
    with BlockStore(fields, clock=clock) as store:
        cache = PrefixCache(model, store)
        first, second = random_tokens(LENGTH, 1), random_tokens(LENGTH, 2)
        request(model, cache, first, step=256)
        turn = request(model, cache, second, step=256)
        assert turn.result.skipped.get(reasons.REFUSED, 0) >= LENGTH // 32 - 4
        assert request(model, cache, first, step=256).cached >= LENGTH - 64
        clock.pass_by(PATIENCE_SECONDS + 1)
        request(model, cache, second, step=256)
        assert request(model, cache, second, step=256).cached >= LENGTH - 64
        store.hot.check_integrity()
