"""A mistake in a program raises where it is made, and is named; a wish for room never does."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from kit.drive import feed, prefill, random_tokens, request
from omlx_cache import BlockStore, PrefixCache, StridePolicy, register_adapter
from omlx_cache.adapters import KVCacheAdapter
from omlx_cache.integrations.batch import CachedBatchGenerator
from omlx_cache.integrations.rows import BatchRow, paged_source

PROMPT = random_tokens(100, 1)
MISTAKES: list[tuple[Callable[[Any, Any], object], str]] = [
    (lambda model, store: PrefixCache(store, model), r"got Model for the store.* are swapped"),
    (lambda model, store: PrefixCache(model, store.settings), r"CacheSettings for the store"),
    (lambda model, store: PrefixCache((model, None), store), r"got tuple for the model"),
    (lambda model, store: register_adapter("some.Cache", model), r"lacks .*config, group"),
    (lambda model, store: register_adapter(KVCache, KVCacheAdapter()), r"KVCache\", not <class"),
    (lambda model, store: store.register(model), r"registers namespaces, not Model"),
    (lambda model, store: BlockStore({"hot_bytes": 1}), r"CacheSettings"),
    (lambda model, store: BlockStore(name=5), r"name must be text, got 5"),
    (lambda model, store: PrefixCache(model, store, model_id=5), r"model_id must be text.* got 5"),
    (lambda model, store: PrefixCache(model, store, adapter=5), r"adapter must be text.* got 5"),
    (lambda model, store: CachedBatchGenerator(PrefixCache(model, store), model), r"got Model for"),
    (lambda model, store: PrefixCache(model, store).session(PROMPT, salt=5), r"text or bytes"),
    (lambda model, store: PrefixCache(model, store).session(PROMPT, extra="x"), r"got 'x'"),
    (lambda model, store: PrefixCache(model, store).clear(extra={1: 2}), r"got {1: 2}"),
    (lambda model, store: PrefixCache(model, store).session(PROMPT, extra={"a": 1}), r"'a': 1"),
    (lambda model, store: PrefixCache(model, store, make_cache=lambda: None), r"got None"),
    (lambda model, store: PrefixCache(model, store, make_cache=list), r"each layer.*got \[\]"),
    (lambda model, store: PrefixCache(model, store, make_cache=5), r"must be a function.*got 5"),
    (lambda model, store: PrefixCache(model, store, make_cache=[]), r"must be a function"),
    (lambda model, store: PrefixCache(model, store, policy="x"), r"StridePolicy\(2048\), got 'x'"),
    (lambda model, store: PrefixCache(model, store, policy=0), r"StridePolicy\(2048\), got 0"),
    (lambda model, store: PrefixCache(model, store, codec_policy=5), r"codec's name .*got 5"),
    (lambda model, store: store.why("x"), r"whole numbers, got last='x', number=None"),
    (lambda model, store: store.why(last=-1), r"got last=-1"),
    (lambda model, store: store.why(number="9"), r"number='9'"),
    (lambda model, store: StridePolicy("x"), r"integer of at least 1, got 'x'"),
    (lambda model, store: StridePolicy(0), r"integer of at least 1, got 0"),
]  # type: ignore[arg-type]
WRONG_VALUES: list[tuple[Callable[[Any, Any], object], str, type[Exception]]] = [
    (
        lambda model, store: PrefixCache(model, store, codec_policy="turbo5"),
        "unknown codec 'turbo5': choose one of dense, ",
        ValueError,
    ),
    (
        lambda model, store: PrefixCache(model, store, adapter="/nowhere/adapter"),
        "adapter",
        FileNotFoundError,
    ),
]


@pytest.mark.parametrize(
    ("make", "said", "error"), [*((*row, TypeError) for row in MISTAKES), *WRONG_VALUES]
)
def test_an_argument_of_another_type_or_value_is_named(
    make: Callable[[Any, Any], object],
    said: str,
    error: type[Exception],
    model: Any,
    store: BlockStore,
) -> None:
    for _ in range(2):
        with pytest.raises(error, match=said):
            make(model, store)


def test_a_path_names_a_model(model: Any, store: BlockStore) -> None:
    request(model, PrefixCache(model, store, model_id=Path("models/mine")), PROMPT)
    assert list(store.labels) == ["models/mine"]
    assert store.metrics()


def test_a_codecs_name_means_the_setting_of_that_name(model: Any, open_store: Any) -> None:
    store = open_store(codec="affine8")
    asked = PrefixCache(model, store)
    named = PrefixCache(model, store, codec_policy=" Affine8")
    request(model, named, PROMPT)
    assert named.codec_policy == asked.codec_policy
    assert asked.lookup(PROMPT).cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize(
    ("name", "value", "error", "said"),
    [
        *(
            ("kv_bits", bits, ValueError, "kv_bits")
            for bits in [7, 0, -1, 9, 2**40, "8", 8.0, True]
        ),
        # It would share a tenant's pages with everybody.
        ("slat", "tenant-a", TypeError, "unexpected keyword argument slat"),
    ],
)
def test_bits_that_mlx_cannot_pack_and_a_misspelt_option_are_refused(
    cache: PrefixCache, name: str, value: Any, error: type[Exception], said: str
) -> None:
    for use in (cache.session, cache.begin, cache.lookup, cache.prefetch):
        with pytest.raises(error, match=said):
            use(PROMPT, **{name: value})


@pytest.mark.parametrize("step", [0, -1, 2.5, "512", None, True])
def test_a_step_that_is_none_is_refused(cache: PrefixCache, step: Any) -> None:
    with cache.session(PROMPT) as session:
        for use in (lambda step: next(session.prefill_chunks(step)), session.next_stop):
            with pytest.raises(ValueError, match="step must be an integer of at least 1"):
                use(step)
        assert session.next_stop(512) == len(PROMPT)


@pytest.mark.parametrize("room", [None, 1.5, "many", -3, sys.maxsize])
def test_any_wish_for_room_restores_and_takes_no_more_than_the_most(
    model: Any, cache: PrefixCache, room: Any
) -> None:
    request(model, cache, PROMPT)
    with cache.session(PROMPT, max_new_tokens=room) as session:
        assert session.cached_tokens == len(PROMPT) - 1
        assert session.prompt_cache[0].keys.shape[2] <= len(PROMPT) + 65_536 + 512


def test_what_was_not_fed_is_named_once(
    model: Any, cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in range(2):
        prompt = random_tokens(100, seed)
        with cache.session(prompt) as session:
            prefill(model, session, 512)
            feed(model, session.prompt_cache, [1, 2, 3])
            session.extend([1, 2])
            assert session.commit().skipped == {"position": 1}
    assert caplog.text.count("the cache is at 103, the session's tokens end at 102") == 1


def test_a_cache_that_was_given_away_is_asked_for(
    model: Any, cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    with cache.session(PROMPT) as session:
        feed(model, session.prompt_cache, PROMPT)
        session.take_cache()
        assert session.commit().skipped == {"position": 1}
    assert "pass commit(prompt_cache=extracted) after take_cache" in caplog.text


def test_a_row_that_is_not_known_is_skipped_and_one_before_its_tokens_is_said_to_be(
    model: Any, cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    size = cache.store.settings.block_size
    prompt, end = PROMPT[: size - 1], PROMPT[size - 1 : size]
    with cache.session(prompt) as session:
        feed(model, session.prompt_cache, prompt)
        batch = [one.merge([one]) for one in session.take_cache()]
        feed(model, batch, end)
        row = paged_source(BatchRow(batch, 0, [*prompt, *end]), session.stored)
        assert row is not None
        session.store_row(None, size)
        assert cache.store.stats().requests.skips == {"not_held": 1}
        for _ in range(2):
            session.store_row(row, size)
        assert session.stored == 0
        [record] = caplog.records
        assert record.getMessage().endswith("append them before")
        session.extend(end)
        session.store_row(row, size)
        assert session.stored == size
    assert cache.store.stats().hot.pages == 1


def test_tokens_that_are_none_are_named_by_their_types(
    cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    cache.retire([1, 2.5, "secret"])  # type: ignore[list-item]
    assert "tokens=['float', 'int', 'str'] is ignored" in caplog.text
    assert "secret" not in caplog.text


def test_numbers_of_numpy_are_numbers(model: Any, cache: PrefixCache) -> None:
    five: Any = np.int64(5)
    request(model, cache, PROMPT)
    assert not cache.session(PROMPT, kv_bits=np.int64(8)).miss_reason.startswith("error")
    with cache.session(
        PROMPT, deadline=np.float32(0.5), max_new_tokens=five, salt="another"
    ) as session:
        chunk = next(session.prefill_chunks(five))
        feed(model, session.prompt_cache, chunk)
        session.checkpoint(five)
        assert session.next_stop(five) == 5
    assert cache.pin(PROMPT, ttl=five).reason is None
    assert cache.begin(PROMPT).wait(np.float32(5))
    assert cache.store.flush(np.float64(5))
    assert cache.store.stats().requests.ignored_hints == 0


def test_what_another_thread_computes_is_said_in_one_line(
    model: Any, cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    session = cache.session(PROMPT)
    count = session.next_stop(100)
    model(mx.array([PROMPT[:count]]), cache=session.prompt_cache)
    with ThreadPoolExecutor(1) as other:
        for _ in range(2):
            other.submit(session.checkpoint, count).result(30)
        result = other.submit(session.commit).result(30)
    if result.skipped == {"error": 1}:  # Not every stream of MLX belongs to one thread.
        assert "evaluate on the thread that computes" in caplog.text
        assert len(caplog.records) == 1


def test_an_abort_before_a_commit_is_no_mistake(
    cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    with cache.session(PROMPT) as session:
        session.abort()
        session.append(5)
        assert session.commit().skipped == {"closed": 1}
    assert not caplog.records


def test_calls_after_the_end_are_counted_and_the_first_is_said(
    cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    with cache.session(PROMPT) as session:
        session.commit()
        for _ in range(2):
            session.append(5)
        assert session.commit().skipped == {"closed": 1}
    assert session.miss_reason == "closed"
    assert cache.store.stats().requests.skips["closed"] == 3
    assert caplog.text.count("after the session's end") == 1
    caplog.clear()


def test_a_loop_of_its_own_ends_after_the_sessions_end(model: Any, cache: PrefixCache) -> None:
    with cache.session(list(range(100))) as session:
        fed = 0
        while count := session.next_stop(32):
            fed += count
            session.abort()
            session.checkpoint()
        assert fed == 100


KINDS = ["llama", "gemma3_text", "qwen3_next", "mamba"]


@pytest.mark.parametrize("model", KINDS, indirect=True)
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_loop_of_its_own_feeds_each_token_once(
    model: Any, cache: PrefixCache, checkpoints: bool
) -> None:
    with cache.session(PROMPT) as session:
        left = session.remaining_tokens
        while count := session.next_stop(32):
            assert session.next_stop(32) == count  # A look changes nothing.
            feed(model, session.prompt_cache, left[:count])
            left = left[count:]
            if checkpoints:
                session.checkpoint()
        assert left == []
        assert session.commit().tokens == len(PROMPT)


@pytest.mark.parametrize("model", KINDS, indirect=True)
def test_an_iterator_goes_on_where_the_last_one_was_left(model: Any, cache: PrefixCache) -> None:
    fed: list[int] = []
    with cache.session(PROMPT) as session:
        while chunk := next(session.prefill_chunks(32), []):
            fed += chunk
            feed(model, session.prompt_cache, chunk)
        session.commit()
    assert fed == PROMPT
    # What has windows or state was captured on the way.
    assert cache.lookup([*PROMPT[:-1], 1]).cached_tokens >= 96


def test_a_loop_of_a_model_without_an_adapter_ends(model: Any, store: BlockStore) -> None:
    class Other(KVCache):  # type: ignore[misc]
        pass

    cache = PrefixCache(model, store, make_cache=lambda: [Other() for _ in model.layers])
    with cache.session(PROMPT) as session:
        while count := session.next_stop(32):
            offset = session.prompt_cache[0].offset
            feed(model, session.prompt_cache, PROMPT[offset : offset + count])
    assert session.prompt_cache[0].offset == len(PROMPT)


@pytest.mark.parametrize("chunks", [True, False])
def test_a_forgotten_cache_is_a_skip_with_a_reason(
    model: Any, cache: PrefixCache, chunks: bool
) -> None:
    with cache.session(PROMPT) as session:
        for chunk in session.prefill_chunks(32) if chunks else []:
            feed(model, cache.fresh_cache(), chunk)
        while count := session.next_stop(32):
            feed(model, cache.fresh_cache(), PROMPT[:count])
            session.checkpoint()
        assert session.commit().skipped == {"position": 1}


def test_a_closed_store_deletes_nothing(model: Any, cache: PrefixCache) -> None:
    request(model, cache, PROMPT)
    cache.store.close()
    assert cache.clear() == 0


REQUESTS: list[Callable[[PrefixCache], object]] = [
    lambda cache: cache.session(PROMPT, deadline="x"),
    lambda cache: cache.session(PROMPT, deadline=float("nan")),
    lambda cache: cache.session(PROMPT, begun="x"),
    lambda cache: cache.session(PROMPT, priority="urgent"),
    lambda cache: cache.session(PROMPT, max_new_tokens="64"),
    lambda cache: cache.session(PROMPT, max_new_tokens=2.5),
    lambda cache: cache.session(PROMPT, max_new_tokens=-5),
    lambda cache: cache.session(PROMPT).append("5"),
    lambda cache: cache.session(PROMPT).append(None),
    lambda cache: cache.session(PROMPT).extend([5, 2.0]),
    lambda cache: cache.begin(PROMPT).wait("x"),
    lambda cache: cache.prefetch(PROMPT).wait("x"),
    lambda cache: cache.prepare(PROMPT, most="x"),
    lambda cache: cache.prepare(PROMPT).step(None),
    lambda cache: cache.prepare("x"),
    lambda cache: cache.pin("x", ttl=5),
    lambda cache: cache.pin(PROMPT, ttl="x"),
    lambda cache: cache.retire(5),
    lambda cache: cache.session([*PROMPT, 1]).want_snapshots(["x"]),
    lambda cache: cache.session([*PROMPT, 1]).want_snapshots(5),
    lambda cache: cache.session(PROMPT, kv_bits=8).want_snapshots("x"),
    lambda cache: cache.session(PROMPT).checkpoint("x"),
    lambda cache: cache.session(PROMPT).reach("x"),
    lambda cache: cache.session(PROMPT).store_row(None, "x"),
    lambda cache: cache.session(PROMPT).commit(ended=5),
    lambda cache: cache.store.flush("x"),
    lambda cache: cache.store.close("x"),
]  # type: ignore[arg-type]


@pytest.mark.parametrize("use", REQUESTS)
@pytest.mark.parametrize("model", ["gemma3_text"], indirect=True)
def test_a_request_ignores_a_wrong_type_counts_it_and_says_it_once(
    use: Callable[[PrefixCache], object], cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        use(cache)
    assert cache.store.stats().requests.ignored_hints == 2
    assert caplog.text.count(" is ignored: give ") == len(caplog.records) == 1
    assert caplog.records[0].exc_info is None


def test_a_wait_without_end_is_one_that_threads_can_wait_for(cache: PrefixCache) -> None:
    for longest in (float("inf"), 10**400):
        assert cache.session(PROMPT, deadline=longest).miss_reason == "absent"
        assert cache.store.flush(longest)


def test_a_cache_that_is_no_list_of_caches_is_not_stored(cache: PrefixCache) -> None:
    with cache.session(PROMPT) as session:
        session.checkpoint(prompt_cache=5)  # type: ignore[arg-type]
        assert session.commit(5).skipped == {"layout_changed": 1}  # type: ignore[arg-type]
