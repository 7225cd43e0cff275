"""Rows of a batch, as those see them that wait for their prompts."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kit import zoo
from kit.drive import random_tokens
from kit.examples import some
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.flights import Flights
from omlx_cache.integrations.mlx_lm import LoadedModel
from omlx_cache.integrations.mlx_lm.batches import ServedBatches
from omlx_cache.integrations.mlx_lm.served_cache import ServedPromptCache
from omlx_cache_storage.keys import as_tokens

from .conftest import FailingModel

KEY = ("a model", None, None)
STEP = 16
FAMILIES = some(["llama", "gemma3_text", "qwen3_next"], "llama", "qwen3_next")
SYSTEM, USER = random_tokens(100, 1), random_tokens(60, 2)


class FlyingBatch:
    """A batch as mlx-lm's server has it: fetched for, told of, inserted at its ends."""

    def __init__(self, store: BlockStore, family: str, **options: Any) -> None:
        self.family, model = family, zoo.build(family)
        self.model = FailingModel(model, lambda calls, tokens: False)
        self.flights: Flights = store.flights
        loaded = LoadedModel(KEY, model)
        self.cache = ServedPromptCache(store, loaded, fetched=lambda found: None, **options)
        self.generator = ServedBatches(self.cache, lambda: None, self.model, prefill_step_size=STEP)
        self.types: dict[int, list[str]] = {}
        self.ends: list[tuple[int, str]] = []

    def insert(self, *segments: Sequence[int], answer: int = 3) -> int:
        tokens = [token for segment in segments for token in segment]
        caches, rest = self.cache.fetch_nearest_cache(KEY, tokens)
        assert len(rest) == len(tokens) or len(segments) == 1
        parts = [list(segment) for segment in segments] if caches is None else [rest]
        (uid,) = self.generator.insert_segments(
            [parts], [answer], [caches], [tokens[: len(tokens) - len(rest)]]
        )
        self.types[uid] = ["system", "user"][-len(segments) :][::-1]
        return uid

    def step(self) -> bool:
        """One step, and what mlx-lm does after it; False when there is nothing to do."""
        prompts, generated = self.generator.next()
        ended = [r.uid for r in prompts if r.end_of_segment and not r.end_of_prompt]
        for uid in [uid for uid in ended if self.types[uid]]:
            caches, tokens = self.generator.extract_cache([uid])[uid]
            self.ends.append((len(tokens), self.types[uid].pop()))
            self.cache.insert_cache(KEY, tokens[:], caches)
        return bool(prompts or generated)

    def waits(self, tokens: Sequence[int]) -> bool:
        return self.cache.awaited(KEY, as_tokens(tokens)) is not None


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[FlyingBatch]:
    """A server of a llama, or of the test's family."""
    settings = CacheSettings(hot_cache_only=True, socket="off", block_size=32)
    with BlockStore(settings) as store:
        server = FlyingBatch(store, getattr(request, "param", "llama"))
        yield server
        server.generator.close()


@pytest.mark.parametrize("server", FAMILIES, indirect=True)
def test_a_row_is_waited_for_until_what_is_shared_is_there(server: FlyingBatch) -> None:
    other = SYSTEM[:75] + random_tokens(40, 3)
    assert not server.waits(other)
    server.insert(SYSTEM, USER)
    while server.waits(other):
        assert server.step()
    caches, rest = server.cache.fetch_nearest_cache(KEY, other)
    assert caches is not None
    assert len(other) - len(rest) == (64 if server.family == "llama" else 75)
    while server.step():
        pass
    assert not server.flights.live


@pytest.mark.parametrize("server", FAMILIES, indirect=True)
def test_a_stop_for_others_does_not_pass_for_the_end_of_a_segment(server: FlyingBatch) -> None:
    server.insert(SYSTEM, USER)
    for parts in (40, 100, 130):
        assert server.waits((SYSTEM + USER)[:parts] + random_tokens(50, parts))
    while server.step():
        pass
    assert server.ends == [(100, "system"), (159, "user")]


@pytest.mark.parametrize("server", FAMILIES, indirect=True)
def test_rows_that_begin_again_after_an_error_are_still_waited_for(server: FlyingBatch) -> None:
    server.insert(SYSTEM, USER)
    server.insert(random_tokens(90, 7))
    other = (SYSTEM + USER)[:130] + random_tokens(40, 3)
    server.step()
    failing = server.model.calls + 2
    server.model.fails = lambda calls, tokens: calls == failing
    while server.waits(other):
        server.step()
        assert server.flights.live
    assert server.model.calls > failing
    # At the end of a segment less than a block of what is shared is missing.
    _caches, rest = server.cache.fetch_nearest_cache(KEY, other)
    assert len(other) - len(rest) >= 100
    while server.step():
        pass
    assert not server.flights.live


def test_a_prompts_end_is_stored_behind_its_answers_first_token(server: FlyingBatch) -> None:
    prompt, others = [*SYSTEM, *USER, 5, 6], [*SYSTEM, *USER, 5, 6, *random_tokens(40, 3)]
    uid = server.insert(SYSTEM, [*USER, 5, 6])
    while not (said := server.generator._rows[uid].said):
        assert server.cache.restorable(KEY, prompt) < 160
        assert server.waits(others)
        assert server.step()
    assert len(said) == 1
    assert server.ends == [(100, "system"), (161, "user")]
    assert server.waits(others)
    assert server.step()
    assert server.cache.restorable(KEY, prompt) == 161
    assert not server.waits(others)


@pytest.mark.parametrize("answer", [1, 3])
def test_each_segment_that_ends_near_a_prompts_end_is_a_restore_point(
    answer: int, server: FlyingBatch
) -> None:
    server.insert(SYSTEM[:98], USER[:4], answer=answer)
    while server.step():
        pass
    assert server.ends == [(98, "system"), (101, "user")]
    assert server.cache.restorable(KEY, [*SYSTEM[:98], *random_tokens(40, 3)]) == 98


@pytest.mark.parametrize("event", ["another prompt", "removed"])
def test_a_prompts_end_does_not_wait_for_a_token_that_comes_late(
    event: str, server: FlyingBatch
) -> None:
    uid = server.insert(SYSTEM, USER)
    while len(server.ends) < 2:
        assert server.step()
    assert server.cache.restorable(KEY, SYSTEM + USER) < 159
    if event == "removed":
        server.generator.remove([uid])
    else:
        server.insert(random_tokens(90, 7))
        server.step()
    assert server.cache.restorable(KEY, SYSTEM + USER) == 159


@pytest.mark.parametrize("how", ["remove", "close"])
def test_a_row_that_is_given_up_is_not_waited_for(how: str, server: FlyingBatch) -> None:
    uid = server.insert(SYSTEM, USER)
    server.step()
    assert server.waits(SYSTEM + USER)
    if how == "remove":
        server.generator.remove([uid])
    else:
        server.generator.close()
    assert not server.waits(SYSTEM + USER)
    assert not server.flights.live


def test_a_row_is_not_waited_for_where_it_was_restored(server: FlyingBatch) -> None:
    server.insert(SYSTEM)
    while server.step():
        pass
    flight = server.cache.flight(KEY, [*SYSTEM, *USER], 0, [])
    assert flight is not None
    request = SimpleNamespace(flight=flight, asked=None)
    server.generator._current = lambda: request
    server.insert([*SYSTEM, *USER])
    with server.flights.lock:
        assert not flight.is_ahead(96)
        assert flight.is_ahead(128)
