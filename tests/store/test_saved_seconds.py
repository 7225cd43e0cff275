"""What was saved, in real stores: every loop is measured, and a restart keeps the rate."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from kit import zoo
from omlx_cache import BlockStore, CacheSettings, PrefixCache
from omlx_cache_storage.stats import RequestStats

BLOCK = 32
PROMPT = [(7 * i * i + 3) % 250 for i in range(400)]


def _settings(**options: Any) -> CacheSettings:
    defaults = {"socket": "off", "min_free_bytes": 0, "block_size": BLOCK}
    return CacheSettings(**{**defaults, **options})


@pytest.fixture(scope="module")
def model() -> Any:
    return zoo.build("qwen3")


def _own_loop(model: Any, cache: PrefixCache, tokens: list[int], step: int = 64) -> None:
    """A scheduler's loop: `next_stop`, the model, `checkpoint`."""
    with cache.session(tokens) as session:
        done = session.cached_tokens
        while count := session.next_stop(step):
            model(mx.array([tokens[done : done + count]]), cache=session.prompt_cache)
            session.evaluate()
            done += count
            session.checkpoint(done)
        session.commit()


def test_a_loop_on_next_stop_is_measured_token_by_token(model: Any) -> None:
    with BlockStore(_settings(hot_cache_only=True)) as store:
        cache = PrefixCache(model, store, model_id="tiny")
        _own_loop(model, cache, PROMPT)
        first = store.stats().requests
        assert first.prefilled_tokens == len(PROMPT)
        assert 0 < first.prefill_seconds < store.stats().uptime_seconds
        (rate,) = first.prefill_tokens_per_second.values()
        assert list(first.prefill_tokens_per_second) == ["tiny"]
        assert rate == pytest.approx(len(PROMPT) / first.prefill_seconds)
        _own_loop(model, cache, PROMPT)
        again = store.stats().requests
        restored = again.restored_tokens
        assert restored == len(PROMPT) - 1
        assert again.prefilled_tokens == len(PROMPT) + 1
        assert again.saved_seconds == pytest.approx(restored / rate - again.restore_seconds)
        records = store.requests.records()
        assert [record.computed_tokens for record in records] == [len(PROMPT), 1]


def test_sessions_that_are_prefilled_in_turns_share_the_clock(model: Any) -> None:
    with BlockStore(_settings(hot_cache_only=True)) as store:
        cache = PrefixCache(model, store)
        prompts = [[n, *PROMPT[:199]] for n in range(4)]
        sessions = [cache.session(prompt) for prompt in prompts]
        began = time.perf_counter()
        loops = [session.prefill_chunks(50) for session in sessions]
        for chunks in zip(*loops, strict=True):
            for session, chunk in zip(sessions, chunks, strict=True):
                model(mx.array([chunk]), cache=session.prompt_cache)
                session.evaluate()
        took = time.perf_counter() - began
        for session in sessions:
            session.abort()
        figures = store.stats().requests
        assert figures.prefilled_tokens == 800
        assert figures.prefill_seconds <= took
        each = [record.compute_seconds for record in store.requests.records()]
        assert sum(each) > 1.5 * figures.prefill_seconds


_RUN = """
import json, sys
import mlx.core as mx
from kit import zoo
from omlx_cache import BlockStore, CacheSettings, PrefixCache

cold_dir, prompts = sys.argv[1], json.loads(sys.argv[2])
settings = CacheSettings(cold_dir=cold_dir, socket="off", min_free_bytes=0, block_size=32)
model = zoo.build("qwen3")
with BlockStore(settings) as store:
    cache = PrefixCache(model, store)
    for prompt in prompts:
        with cache.session(prompt, salt=sys.argv[3]) as session:
            for chunk in session.prefill_chunks(64):
                model(mx.array([chunk]), cache=session.prompt_cache)
                session.evaluate()
            session.commit()
    store.flush()
    print(json.dumps(store.stats().to_dict()["requests"]))
"""


def _process(cold_dir: Path, prompts: list[list[int]], salt: str = "a") -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-c", _RUN, str(cold_dir), json.dumps(prompts), salt],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    figures: dict[str, Any] = json.loads(ended.stdout)
    return figures


def test_a_restart_keeps_the_rate_and_counts_from_the_first_restore(tmp_path: Path) -> None:
    cold_dir = tmp_path / "cold"
    first = _process(cold_dir, [PROMPT])
    assert first["restored_tokens"] == 0
    (rate,) = first["prefill_tokens_per_second"].values()
    second = _process(cold_dir, [PROMPT])
    assert second["restored_cold_tokens"] == len(PROMPT) - 1
    assert list(second["prefill_tokens_per_second"].values()) == [pytest.approx(rate)]
    expected = second["restored_tokens"] / rate - second["restore_seconds"]
    assert second["saved_seconds"] == pytest.approx(expected)
    (kept,) = cold_dir.rglob("prefill.json")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_the_rate_is_the_models_whatever_the_salt(tmp_path: Path) -> None:
    first = _process(tmp_path / "cold", [PROMPT], salt="a")
    short = _process(tmp_path / "cold", [PROMPT[:40]], salt="b")
    assert short["prefilled_tokens"] == 40
    assert short["prefill_tokens_per_second"] == pytest.approx(first["prefill_tokens_per_second"])


def test_a_rate_is_kept_while_the_store_is_open(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()
    monkeypatch.setattr("omlx_cache.upkeep.rates.PAUSE_SECONDS", 0.0)
    with BlockStore(_settings(cold_dir=tmp_path / "cold")) as store:
        keep = store.counters.work.saved
        monkeypatch.setattr(
            store.counters.work, "saved", lambda unsaved: (keep(unsaved), written.set())
        )
        _own_loop(model, PrefixCache(model, store), PROMPT)
        store.flush()
        assert written.wait(60)
        assert len(list((tmp_path / "cold").rglob("prefill.json"))) == 1


def test_what_the_documents_of_others_say_is_no_obstacle(model: Any, tmp_path: Path) -> None:
    cold_dir = tmp_path / "cold"
    with BlockStore(_settings(cold_dir=cold_dir)) as store:
        _own_loop(model, PrefixCache(model, store), PROMPT)
    (kept,) = cold_dir.rglob("prefill.json")
    kept.write_text('{"model": 5')
    with BlockStore(_settings(cold_dir=cold_dir)) as store:
        _own_loop(model, PrefixCache(model, store), PROMPT)
        figures: RequestStats = store.stats().requests
        assert figures.restored_tokens == len(PROMPT) - 1
        assert figures.saved_seconds == 0
