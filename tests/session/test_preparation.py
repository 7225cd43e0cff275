"""`cache.prepare`: a prompt's beginning is computed before anybody asks for it."""

import math
import time
from typing import Any

import mlx.core as mx
import pytest

from kit import zoo
from kit.drive import prefill, random_tokens, request, run, same
from kit.examples import some
from kit.sessions import Opener
from omlx_cache import BlockStore, PrefixCache, scope
from omlx_cache.preparation import Preparation
from omlx_cache.scope import CHUNK_SECONDS, FEWEST_TOKENS, MOST_TOKENS, Pace
from omlx_cache.upkeep.memory import Level, MemoryFigures
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.hot_page import PageState

ASKED = random_tokens(300, 1)
NEXT = ASKED + random_tokens(410, 2)
NEW = random_tokens(40, 3)
FAMILIES = ["llama", "qwen3_next", "gemma3_text", "mamba2"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work on this machine would decide what is slow."""
    monkeypatch.setattr(scope, "SLOW_SECONDS", 60.0)
    monkeypatch.setattr(scope, "RESTORE_SECONDS", 60.0)


class FedModel:
    """A model, and the chunks that it was fed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.chunks: list[list[int]] = []

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        self.chunks += tokens.tolist()
        return self.model(tokens, cache=cache)


@pytest.fixture
def fed(model: Any) -> FedModel:
    return FedModel(model)


@pytest.fixture
def asked(model: Any, cache: PrefixCache) -> None:
    """Somebody has asked for what comes before `NEXT`."""
    request(model, cache, ASKED)


def finish(preparation: Preparation, model: Any) -> None:
    while preparation.step(model):
        pass
    assert preparation.is_over


def states(store: BlockStore) -> set[PageState]:
    return {held.state for held in store.hot.entries()}


@pytest.mark.parametrize(
    "model", some(FAMILIES, "llama", "qwen3_next", "gemma3_text"), indirect=True
)
def test_what_was_prepared_is_restored_to_its_end_and_has_the_bits_of_a_run(
    model: Any, store: BlockStore, cache: PrefixCache, fed: FedModel
) -> None:
    first = request(model, cache, ASKED, step=256)
    preparation = cache.prepare(NEXT)
    finish(preparation, fed)
    assert preparation.computed == sum(map(len, fed.chunks)) == len(NEXT) - len(ASKED)
    assert preparation.reason == ""
    turn = request(model, cache, NEXT + NEW, step=256)
    assert turn.cached == len(NEXT)
    assert same(turn.logits, run(model, [*first.steps, *fed.chunks, *turn.steps]))
    counted = store.stats().requests
    assert counted.prepared_tokens == counted.prepared_asked_tokens == preparation.computed
    assert store.requests.records()[-1].prepared_tokens == preparation.computed
    # The same again is not asked for a second time.
    request(model, cache, NEXT + NEW)
    assert store.stats().requests.prepared_asked_tokens == preparation.computed
    assert store.requests.records()[-1].prepared_tokens == 0


@pytest.mark.usefixtures("asked")
def test_nothing_is_prepared_of_what_is_cached_or_none(
    model: Any, cache: PrefixCache, fed: FedModel
) -> None:
    for tokens in (ASKED, ASKED[:64], [], ["a"], None):
        finish(cache.prepare(tokens), fed)  # type: ignore[arg-type]
    assert not fed.chunks
    assert cache.store.stats().requests.ignored_hints == 2
    with pytest.raises(TypeError, match="salted"):
        cache.prepare(NEXT, salted=1)  # type: ignore[call-arg]


@pytest.mark.usefixtures("asked")
def test_so_many_tokens_are_prepared_at_most(model: Any, cache: PrefixCache) -> None:
    finish(cache.prepare(NEXT, most=100), model)
    assert cache.lookup(NEXT).cached_tokens == 400
    finish(cache.prepare(NEXT, most=0), model)
    assert cache.lookup(NEXT).cached_tokens == 400


@pytest.mark.parametrize(
    "model", some(FAMILIES, "llama", "qwen3_next", "gemma3_text"), indirect=True
)
def test_what_is_given_up_is_restored_as_far_as_it_was_computed(
    model: Any, store: BlockStore, cache: PrefixCache, fed: FedModel
) -> None:
    preparation = cache.prepare(NEXT)
    while not fed.chunks:
        assert preparation.step(fed)
    preparation.close()
    assert not preparation.step(fed)
    assert len(fed.chunks) == 1
    turn = request(model, cache, NEXT, step=256)
    assert turn.cached == preparation.computed == len(fed.chunks[0])
    assert same(turn.logits, run(model, [*fed.chunks, *turn.steps]))
    assert store.stats().snapshots.live_bytes == 0


@pytest.mark.usefixtures("asked")
def test_prepared_pages_are_written_when_they_are_used(
    model: Any, open_store: Opener, store: BlockStore, cache: PrefixCache
) -> None:
    assert store.flush(10)
    written = store.stats().writer.written_pages  # type: ignore[union-attr]
    finish(cache.prepare(NEXT), model)
    assert store.flush(10)
    assert store.stats().writer.written_pages == written  # type: ignore[union-attr]
    assert states(store) == {PageState.CLEAN, PageState.PREPARED}
    assert store.in_memory_only() == [], "nobody would miss them"
    assert request(model, cache, NEXT + NEW).cached == len(NEXT)
    assert store.flush(10)
    assert states(store) == {PageState.CLEAN}
    store = open_store()
    assert PrefixCache(model, store).lookup(NEXT + NEW + [0]).cached_tokens == len(NEXT + NEW)


@pytest.mark.usefixtures("asked")
def test_prepared_pages_leave_memory_first_and_are_owed_to_nobody(
    model: Any, store: BlockStore, cache: PrefixCache
) -> None:
    finish(cache.prepare(NEXT), model)
    assert store.flush(10)
    held = store.stats().hot.nbytes
    mine = [one for one in store.hot.entries() if one.state is PageState.PREPARED]
    assert store.shrink_hot(held - sum(one.nbytes for one in mine))
    assert states(store) == {PageState.CLEAN}
    assert cache.lookup(NEXT).cached_tokens == 300
    assert store.hot.dropped == 0
    assert store.flush(10)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_it_is_restored_from_is_used_by_nobody(
    where: str, model: Any, open_store: Opener
) -> None:
    store = open_store()
    request(model, PrefixCache(model, store), ASKED)
    if where == "disk":
        store = open_store()
    before = {held.id: held.stamp_ns for records in store.records().values() for held in records}
    preparation = PrefixCache(model, store).prepare(NEXT)
    finish(preparation, model)
    assert preparation.computed == len(NEXT) - len(ASKED)
    cold = store.records()["cold"]
    found = {
        held.id: held.stamp_ns for held in (store.hot.entries() if where == "memory" else cold)
    }
    assert {page: found[page] for page in before} == before


def test_nothing_is_prepared_while_memory_is_short_or_keeps_nothing(
    model: Any, open_store: Opener, fed: FedModel
) -> None:
    store = open_store(hot_bytes=0)
    nothing = PrefixCache(model, store).prepare(NEXT)
    finish(nothing, fed)
    assert nothing.reason == "no_room"
    store = open_store()
    cache = PrefixCache(model, store)
    preparation = cache.prepare(NEXT)
    store._relief.step(MemoryFigures(verdict=Level.WARN))
    finish(preparation, fed)
    assert preparation.reason == "short_of_memory"
    finish(cache.prepare(NEXT), fed)
    assert not fed.chunks
    store._relief.step(MemoryFigures(verdict=Level.NORMAL))
    finish(cache.prepare(NEXT), fed)
    assert fed.chunks


def test_no_more_is_computed_than_memory_has_room_for(
    model: Any, open_store: Opener, fed: FedModel
) -> None:
    store = open_store(hot_bytes="200KiB", queue_bytes="200KiB")
    cache = PrefixCache(model, store)
    request(model, cache, ASKED[:64])
    preparation = cache.prepare(random_tokens(4096, 5))
    finish(preparation, fed)
    assert 0 < preparation.computed < 4096
    assert preparation.reason == "no_room"
    usage = store.stats().hot
    assert usage.peak_bytes <= usage.limit_bytes


@pytest.mark.parametrize("hot_cache_only", [True, False], ids=["memory", "disk"])
def test_no_page_that_was_used_is_lost_for_a_prepared_one(
    hot_cache_only: bool, model: Any, open_store: Opener, fed: FedModel
) -> None:
    store = open_store(
        hot_bytes="600KiB", queue_bytes="600KiB", hot_cache_only=hot_cache_only, write_policy="lazy"
    )
    cache = PrefixCache(model, store)
    for seed in range(8):
        request(model, cache, random_tokens(300, 40 + seed))
    request(model, cache, ASKED)
    before = {
        held.id
        for held in store.hot.entries()
        if held.stamp_ns > SUPERSEDED_NS and held.state is not PageState.CLEAN
    }
    finish(cache.prepare(random_tokens(600, 5)), fed)
    finish(cache.prepare([*ASKED, *random_tokens(600, 5)]), fed)
    gone = before - {held.id for held in store.hot.entries()}
    # The disk may have got it meanwhile.
    assert all(page in store.cold for page in gone)
    assert sum(map(len, fed.chunks)) < 1200
    assert cache.lookup([*ASKED, 1]).cached_tokens == len(ASKED)


def test_in_full_memory_a_prepared_page_takes_the_place_of_one_that_the_disk_has(
    model: Any, open_store: Opener, fed: FedModel
) -> None:
    store = open_store(hot_bytes="600KiB", queue_bytes="600KiB")
    cache = PrefixCache(model, store)
    old = [random_tokens(300, 40 + seed) for seed in range(8)]
    for tokens in old:
        request(model, cache, tokens)
    request(model, cache, ASKED)
    assert store.flush(10)
    finish(cache.prepare(NEXT), fed)
    assert sum(map(len, fed.chunks)) == len(NEXT) - len(ASKED)
    assert request(model, cache, [*NEXT, *random_tokens(40, 6)]).cached == len(NEXT)
    for tokens in old:
        assert cache.lookup([*tokens, 1]).cached_tokens == len(tokens)


@pytest.mark.parametrize("when", ["expected", "begun", "computing"])
@pytest.mark.usefixtures("asked")
def test_what_is_cleared_is_not_stored_again(
    when: str, model: Any, store: BlockStore, cache: PrefixCache, fed: FedModel
) -> None:
    other = PrefixCache(model, store)
    preparation = cache.prepare(NEXT)

    def clearing(*arguments: Any, **options: Any) -> Any:
        other.clear()
        return fed(*arguments, **options)

    while when != "expected" and not fed.chunks:
        preparation.step(fed)
    if when == "computing":
        preparation.step(clearing)
    else:
        other.clear()
    preparation.close()
    assert preparation.is_over
    assert not store.hot.entries()
    assert cache.lookup(NEXT).cached_tokens == 0
    assert store.flush(10)
    # What is expected from now on is prepared again.
    finish(cache.prepare(NEXT), fed)
    assert cache.lookup([*NEXT, 1]).cached_tokens == len(NEXT)


@pytest.mark.usefixtures("asked")
def test_what_a_peer_process_clears_ends_a_preparation(
    model: Any, store: BlockStore, cache: PrefixCache, monkeypatch: Any, fed: FedModel
) -> None:
    monkeypatch.setattr(Pace, "tokens", 32)
    assert store.flush(10)
    preparation = cache.prepare(NEXT)
    while not preparation.computed:
        assert preparation.step(fed)
    with BlockStore(store.settings) as peer:
        assert PrefixCache(model, peer).clear() > 0
    while preparation.step(fed):
        # The news come while a chunk is computed.
        time.sleep(0.05)
    assert preparation.computed < 410 - 32
    assert store.requests.prepared.ask(preparation._scope.chain(preparation._tokens), 710) == 0


def test_a_preparation_waits_for_no_disk_and_evicts_nothing_for_what_it_reads(
    model: Any, open_store: Opener, monkeypatch: Any
) -> None:
    waits: list[float] = []
    reserved: list[bool] = []
    store = open_store(hot_bytes="64KiB", queue_bytes="64KiB")
    cache = PrefixCache(model, store)
    request(model, cache, ASKED)
    assert store.flush(10)
    store.shrink_hot(0)
    refresh, reserve = BlockStore.refresh, BlockStore.reserve

    def refreshed(self: BlockStore, timeout: float = math.inf) -> bool:
        waits.append(timeout)
        return refresh(self, timeout)

    def read(self: BlockStore, *arguments: Any, **options: Any) -> Any:
        reserved.append(options["prepared"])
        return reserve(self, *arguments, **options)

    monkeypatch.setattr(BlockStore, "refresh", refreshed)
    monkeypatch.setattr(BlockStore, "reserve", read)
    finish(cache.prepare(NEXT, most=32), model)
    # A disk that did not answer once is not waited for again.
    assert waits[0] <= CHUNK_SECONDS
    assert reserved
    assert all(reserved)


def test_a_model_that_fails_ends_the_preparation_alone(model: Any, cache: PrefixCache) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    preparation = cache.prepare(NEXT)
    finish(preparation, failing)
    assert preparation.reason == "error:RuntimeError"
    assert request(model, cache, NEXT).cached == 0


def test_another_model_prepares_nothing(
    model: Any, cache: PrefixCache, caplog: pytest.LogCaptureFixture
) -> None:
    other = zoo.build("llama", seed=7)
    for _ in range(2):
        preparation = cache.prepare(NEXT)
        finish(preparation, other)
        assert (preparation.computed, preparation.reason) == (0, "other_model")
    assert cache.store.stats().requests.ignored_hints == 2
    assert caplog.text.count("model=") == 1
    # A part of the model, or what is around it, is no other one.
    assert cache.is_of(model.model)


@pytest.mark.parametrize("model", ["gemma3_text"], indirect=True)
def test_a_preparation_that_is_lost_gives_back_what_it_captured(
    model: Any, store: BlockStore, cache: PrefixCache
) -> None:
    preparation = cache.prepare(NEXT)
    for _ in range(3):
        preparation.step(model)
    del preparation
    assert store.stats().snapshots.live_bytes == 0


def test_a_chunk_takes_a_tenth_of_a_second_at_most() -> None:
    pace = Pace()
    assert pace.tokens == FEWEST_TOKENS
    pace.took(32, 0.032)
    assert pace.tokens == 100
    pace.took(100, 0.001)
    assert pace.tokens == MOST_TOKENS
    pace.took(256, 25.6)
    assert pace.tokens == FEWEST_TOKENS


@pytest.mark.parametrize("fewest", [FEWEST_TOKENS, MOST_TOKENS])
def test_a_short_chunk_is_not_taken_for_a_slow_model(fewest: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(scope, "SLOW_SECONDS", 0.5)
    pace = Pace()
    # Its last one, or the one up to a multiple.
    pace.took(1, 0.06)
    assert not pace.is_slow(fewest)
    pace.took(1, 1.0)
    assert pace.is_slow(fewest)


@pytest.mark.parametrize(
    ("model", "smallest"),
    some(
        [
            ("llama", FEWEST_TOKENS),
            ("qwen3_next", 256),
            ("gemma3_text", FEWEST_TOKENS),
            ("mamba2", 256),
        ],
        ("llama", FEWEST_TOKENS),
        ("qwen3_next", 256),
    ),
    indirect=["model"],
)
def test_where_a_chunk_takes_too_long_one_is_computed_until_requests_are_quicker(
    model: Any, smallest: int, cache: PrefixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, clock, late = FedModel(model), time.perf_counter, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late)

    def slow(tokens: mx.array, cache: list[Any]) -> mx.array:
        nonlocal late
        late += scope.SLOW_SECONDS
        return fed(tokens, cache)

    for _ in range(2):
        preparation = cache.prepare(NEXT)
        finish(preparation, slow)
        assert preparation.reason == "too_slow"
    assert [len(chunk) for chunk in fed.chunks] == [smallest]
    # What was computed is there, and a request is quicker.
    prompt = [*NEXT[:smallest], *random_tokens(300, 6)]
    assert request(model, cache, prompt, step=512).cached == smallest
    finish(cache.prepare(NEXT), slow)
    assert len(fed.chunks) == 2


@pytest.mark.usefixtures("asked")
def test_where_a_restore_took_too_long_it_is_tried_now_and_then(
    model: Any, cache: PrefixCache, fed: FedModel
) -> None:
    cache.pace.restored(300, 230.0)
    finish(cache.prepare(NEXT), fed)
    assert not fed.chunks
    finish(cache.prepare(NEXT), fed)
    assert not fed.chunks
    finish(cache.prepare(NEXT), fed)
    assert fed.chunks


@pytest.mark.usefixtures("asked")
def test_a_restore_takes_no_longer_than_what_it_saves(
    model: Any, cache: PrefixCache, monkeypatch: pytest.MonkeyPatch, fed: FedModel
) -> None:
    monkeypatch.setattr(scope, "RESTORE_SECONDS", 0.1)
    cache.pace.took(256, 0.256)
    # As long as 10,000 tokens take.
    cache.pace.restored(300, 10.0)
    finish(cache.prepare(NEXT), fed)
    assert not fed.chunks
    cache.pace.took(256, 256.0)
    finish(cache.prepare(NEXT), fed)
    assert fed.chunks


@pytest.mark.parametrize("pinned", ["before", "after"])
def test_a_pinned_page_that_was_prepared_is_written_with_what_follows_it(
    pinned: str, model: Any, open_store: Opener, store: BlockStore, cache: PrefixCache
) -> None:
    if pinned == "before":
        cache.pin(ASKED, ttl=3600)
    finish(cache.prepare(ASKED), model)
    if pinned == "after":
        cache.pin(ASKED, ttl=3600)
    assert request(model, cache, ASKED + NEW).cached == len(ASKED)
    assert store.flush(10)
    assert store.in_memory_only() == []
    store = open_store()
    assert PrefixCache(model, store).lookup(ASKED + NEW + [0]).cached_tokens == len(ASKED + NEW)


def test_a_prepared_sibling_takes_nothing_from_a_restore_point_that_is_owed(
    open_store: Opener,
) -> None:
    base = random_tokens(600, 39)
    store, model = open_store(write_policy="lazy"), zoo.build("gemma3_text")
    cache = PrefixCache(model, store)
    request(model, cache, base[:187], step=16)
    assert cache.lookup([*base[:159], 1]).cached_tokens == 159
    finish(cache.prepare(base[:102] + random_tokens(22, 939)), model)
    assert store.flush(10)
    store = open_store(write_policy="lazy")
    assert PrefixCache(model, store).lookup([*base[:159], 1]).cached_tokens == 159


def test_a_request_behind_prepared_pages_has_them_written_before_its_own(
    model: Any, store: BlockStore, cache: PrefixCache
) -> None:
    preparation = cache.prepare(NEXT[:320])
    with cache.session(NEXT) as session:
        assert session.cached_tokens == 0
        finish(preparation, model)
        prefill(model, session, 64)
        assert store.flush(10)
        assert states(store) == {PageState.CLEAN}
        assert store.stats().writer.refused_pages == 0  # type: ignore[union-attr]
