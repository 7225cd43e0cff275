"""What a session promises a scheduler: names, bounds and reasons; nothing raises for the cache.

At most all but one token are restored. Leaving without commit releases what was held. A second
commit stores nothing. Salts, models and block sizes share nothing. Hints change nothing that is
right.
"""

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from contract.arithmetic import DENSE, HYBRID, WINDOWED, Arithmetic, tokens_of
from contract.driving import BLOCK, ask
from omlx_cache import BlockStore, CacheSettings, CommitResult, ConfigError, PrefixCache

Open = Callable[..., BlockStore]
TOKENS = tokens_of(1, 3 * BLOCK + 5)


@pytest.mark.parametrize("count", [2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("kinds", [DENSE, HYBRID, WINDOWED], ids="-".join)
def test_the_last_token_is_never_restored(
    count: int, kinds: tuple[str, ...], open_store: Open
) -> None:
    model = Arithmetic(kinds)
    cache = PrefixCache(model, open_store())
    for _ in range(2):
        turn = ask(model, cache, TOKENS[:count])
    assert (turn.cached, turn.reason, turn.wrong) == (count - 1, None, "")


def test_a_commit_says_what_it_stored(open_store: Open) -> None:
    model, store = Arithmetic(), open_store()
    cache = PrefixCache(model, store)
    first, second = (ask(model, cache, TOKENS).result for _ in range(2))
    assert isinstance(first, CommitResult)
    assert (first.tokens, first.pages) == (len(TOKENS), 4)
    assert first.nbytes == 2 * 2 * 2 * 32 * 2 * len(TOKENS)
    assert not first.skipped
    assert second is not None
    assert (second.tokens, second.pages, second.nbytes) == (len(TOKENS), 0, 0)
    requests = store.stats().requests
    assert (requests.sessions, requests.commits, requests.live_sessions) == (2, 2, 0)
    assert requests.asked_tokens == 2 * len(TOKENS)
    assert requests.restored_tokens == len(TOKENS) - 1
    assert requests.stored_pages == 4


def test_the_first_request_misses_with_a_reason(open_store: Open) -> None:
    model = Arithmetic()
    turn = ask(model, PrefixCache(model, open_store()), TOKENS)
    assert turn.cached == 0
    assert turn.reason == "absent"


def test_leaving_without_commit_stores_no_tail_and_releases_everything(open_store: Open) -> None:
    model, store = Arithmetic(HYBRID), open_store()
    cache = PrefixCache(model, store)
    with contextlib.suppress(KeyError), cache.session(TOKENS) as session:
        for chunk in session.prefill_chunks(step=BLOCK):
            model.feed(session.prompt_cache, chunk, 0)
            raise KeyError
    stats = store.stats()
    assert (stats.requests.live_sessions, stats.requests.commits) == (0, 0)
    assert (stats.snapshots.live, stats.snapshots.live_bytes) == (0, 0)
    assert ask(model, cache, TOKENS).wrong == ""


def test_a_session_that_was_lost_releases_what_it_held(open_store: Open) -> None:
    model, store = Arithmetic(), open_store()
    cache = PrefixCache(model, store)
    lost = cache.session(TOKENS)
    assert store.stats().requests.live_sessions == 1
    del lost
    gc.collect()
    assert store.stats().requests.live_sessions == 0


def test_a_second_commit_and_one_after_an_abort_store_nothing(open_store: Open) -> None:
    model = Arithmetic()
    cache = PrefixCache(model, open_store())
    with cache.session(TOKENS) as session:
        model.feed(session.prompt_cache, TOKENS, 0)
        session.abort()
        assert session.commit().pages == 0
    with cache.session(TOKENS) as session:
        for chunk in session.prefill_chunks():
            model.feed(session.prompt_cache, chunk, 0)
        assert session.commit().pages == 4
        assert session.commit().pages == 0


def test_a_commit_with_release_gives_the_cache_up(open_store: Open) -> None:
    model = Arithmetic()
    cache = PrefixCache(model, open_store())
    with cache.session(TOKENS) as session:
        for chunk in session.prefill_chunks():
            model.feed(session.prompt_cache, chunk, 0)
        taken = list(session.prompt_cache)
        assert session.commit(release=True).pages == 4
        assert session.prompt_cache == []
    assert model.wrong(taken, TOKENS, len(TOKENS)) == ""


def test_a_cache_that_is_elsewhere_than_it_says_is_not_stored(open_store: Open) -> None:
    model = Arithmetic()
    cache = PrefixCache(model, open_store())
    with cache.session(TOKENS) as session:
        model.feed(session.prompt_cache, TOKENS[:40], 0)
        session.extend([1, 2, 3])
        session.commit()
    turn = ask(model, cache, [*TOKENS, 1, 2, 3, 4])
    assert turn.wrong == ""
    assert turn.cached <= 40


@pytest.mark.parametrize(
    "tokens", [[], [5], [2**63], [-(2**63) - 1], ["a", "b"], [[1, 2], [3]], [None, 3], [1.5, 2.5]]
)
def test_a_prompt_that_is_none_is_a_miss_and_no_error(tokens: Any, open_store: Open) -> None:
    model = Arithmetic()
    cache = PrefixCache(model, open_store())
    with cache.session(tokens) as session:
        assert session.cached_tokens == 0
        assert session.miss_reason
        assert len(session.prompt_cache) == 2
        session.commit()
    assert ask(model, cache, TOKENS).wrong == ""


def test_token_ids_may_be_any_64_bit_integer(open_store: Open) -> None:
    model, tokens = Arithmetic(), [-(2**63), 2**63 - 1, -1, 0, *TOKENS]
    cache = PrefixCache(model, open_store())
    feeds = [0, 0, 0, 0, *TOKENS]
    for expected in (0, len(tokens) - 1):
        with cache.session(mx.array(tokens).tolist()) as session:
            assert session.cached_tokens == expected
            assert model.wrong(session.prompt_cache, feeds, expected) == ""
            model.feed(session.prompt_cache, feeds[expected:], expected)
            session.commit()


def test_salts_share_nothing(open_store: Open) -> None:
    model = Arithmetic()
    cache = PrefixCache(model, open_store())
    for salt in (None, "a", "b", b"a", ""):
        turn = ask(model, cache, TOKENS, salt=salt)
        assert (turn.cached, turn.reason) == (0, "absent")
        assert cache.lookup(TOKENS, salt=salt).cached_tokens == len(TOKENS) - 1
    keys = [{page.key for page in cache.lookup(TOKENS, salt=s).pages} for s in ("a", "b", None)]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    assert cache.clear(salt="a") == 4
    assert cache.lookup(TOKENS, salt="a").cached_tokens == 0
    assert cache.lookup(TOKENS, salt="b").cached_tokens == len(TOKENS) - 1
    assert ask(model, cache, TOKENS, extra={"lora": "1"}).cached == 0


def test_models_adapters_and_caches_share_nothing(open_store: Open) -> None:
    store = open_store()
    ask(Arithmetic(), PrefixCache(Arithmetic(), store, model_id="one"), TOKENS)
    for other in (Arithmetic(weights=1), Arithmetic(("kv", "kv", "kv"))):
        turn = ask(other, PrefixCache(other, store, model_id="one"), TOKENS)
        assert (turn.cached, turn.wrong) == (0, "")
    model = Arithmetic()
    assert ask(model, PrefixCache(model, store, adapter="lora-1"), TOKENS).cached == 0
    # A label is for people.
    again = ask(model, PrefixCache(model, store, model_id="two"), TOKENS)
    assert again.cached == len(TOKENS) - 1


def test_a_cache_class_without_adapter_misses_and_stores_nothing(open_store: Open) -> None:
    class Strange:
        def __init__(self) -> None:
            self.offset = 0

    store = open_store()
    cache = PrefixCache(Arithmetic(), store, make_cache=lambda: [Strange()])
    assert cache.unsupported_reason is not None
    with cache.session(TOKENS) as session:
        assert session.cached_tokens == 0
        assert "Strange" in str(session.miss_reason)
        assert isinstance(session.prompt_cache[0], Strange)
        assert session.commit().pages == 0
    assert store.stats().hot.pages == 0


@pytest.mark.parametrize("ended", ["turn", "tool_call", None, "nonsense"])
@pytest.mark.parametrize("priority", ["low", "normal", "high", "nonsense"])
def test_hints_change_nothing_that_is_right(ended: Any, priority: str, open_store: Open) -> None:
    model = Arithmetic()
    cache = PrefixCache(model, open_store())
    with cache.session(TOKENS, priority=priority, max_new_tokens=7) as session:
        for chunk in session.prefill_chunks(step=2048):
            model.feed(session.prompt_cache, chunk, 0)
        assert session.commit(ended=ended).pages == 4
    cache.retire(TOKENS)
    turn = ask(model, cache, TOKENS, priority=priority)
    assert (turn.cached, turn.wrong) == (len(TOKENS) - 1, "")


def test_memory_only_keeps_no_file(open_store: Open, directory: Any) -> None:
    model = Arithmetic()
    store = open_store(hot_cache_only=True)
    cache = PrefixCache(model, store)
    for cached in (0, len(TOKENS) - 1):
        turn = ask(model, cache, TOKENS)
        assert (turn.cached, turn.wrong) == (cached, "")
    assert store.flush(1)
    assert store.stats().cold is None
    assert not directory.exists()


def test_a_closed_store_is_a_miss_with_a_reason(open_store: Open) -> None:
    model, store = Arithmetic(), open_store()
    cache = PrefixCache(model, store)
    ask(model, cache, TOKENS)
    assert store.close()
    assert store.close()
    turn = ask(model, cache, TOKENS)
    assert (turn.cached, turn.reason, turn.wrong) == (0, "store_closed", "")
    assert turn.result is not None
    assert turn.result.pages == 0


def test_settings_refuse_what_is_none(tmp_path: Any) -> None:
    for given in ({"block_size": 0}, {"hot_bytes": "much"}, {"codec": "mp3"}, {"no_such": 1}):
        with pytest.raises(ConfigError) as refused:
            CacheSettings(cold_dir=tmp_path, **given)
        assert next(iter(given)) in str(refused.value)
    assert issubclass(ConfigError, ValueError)
    with pytest.raises(TypeError):
        PrefixCache(Arithmetic(), "no store")  # type: ignore[arg-type]


def test_settings_come_from_the_environment_and_arguments_win(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_BLOCK_SIZE", "64")
    monkeypatch.setenv("OMLX_CACHE_HOT_BYTES", "3MiB")
    made = CacheSettings(cold_dir=tmp_path, hot_bytes="5MiB")
    assert (made.block_size, made.hot_bytes) == (64, 5 << 20)
    monkeypatch.setenv("OMLX_CACHE_BLOKC_SIZE", "64")
    with pytest.raises(ConfigError):
        CacheSettings(cold_dir=tmp_path)
