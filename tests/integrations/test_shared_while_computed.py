"""Requests with one new prefix, together in a batch or a scheduler: it is computed once."""

from types import ModuleType
from typing import Any

import pytest
from mlx_lm.generate import BatchGenerator

from kit.examples import some
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.batch import CachedBatchGenerator

from .conftest import model_of, prompt_of
from .test_batch import NEW, alone, drain, serve

FAMILIES = ["llama", "gemma3_text", "qwen3_next"]
BLOCK = 64
SHARED = prompt_of(500)
PROMPTS = [SHARED + prompt_of(40 + 9 * n, seed=n + 1) for n in range(4)]


def exactly(model: Any, store: BlockStore, tokens: int) -> int:
    """How much of a shared prefix can be restored: for windows and state, all of it."""
    trims = PrefixCache(model, store).scope().trims
    return tokens // BLOCK * BLOCK if trims else tokens


class Bed:
    """A batch generator and the count of the prompts' tokens that it was fed."""

    def __init__(self, model: Any, store: BlockStore, **options: Any) -> None:
        self.generator = BatchGenerator(model, prefill_step_size=128, **options)
        self.store = store
        self.batch = CachedBatchGenerator(self.generator, PrefixCache(model, store))

    def serve(self, prompts: list[list[int]], **options: Any) -> tuple[list[list[int]], int]:
        with self.generator.stats() as stats:
            answers = serve(self.batch, prompts, **options)
        # Each prompt's last token is counted with its answer.
        return answers, stats.prompt_tokens + len(prompts)


def computed(prompts: list[list[int]], cached: int) -> int:
    """Tokens of one prompt, and those of the others beyond what they share."""
    return len(prompts[0]) + sum(len(prompt) - cached for prompt in prompts[1:])


@pytest.mark.parametrize("count", some([2, 4], 4))
@pytest.mark.parametrize("family", some(FAMILIES, "qwen3_next"))
def test_a_new_prefix_is_computed_once_in_a_batch(
    family: str, count: int, store: BlockStore
) -> None:
    model, prompts = model_of(family), PROMPTS[:count]
    answers, fed = Bed(model, store).serve(prompts)
    assert answers == alone(model, prompts)
    assert fed == computed(prompts, exactly(model, store, len(SHARED)))
    held = [record.held_seconds > 0 for record in store.requests.records()]
    assert held == [False] + [True] * (count - 1)
    assert {record.waited_for for record in store.requests.records()[1:]} == {1}


@pytest.mark.parametrize("family", some(FAMILIES, "qwen3_next"))
def test_when_the_one_that_computes_is_cancelled_the_next_goes_on_from_there(
    family: str, store: BlockStore
) -> None:
    model = model_of(family)
    bed = Bed(model, store)
    first = bed.batch.submit(PROMPTS[0], max_tokens=NEW, segments=[2 * BLOCK])
    others = [bed.batch.submit(prompt, max_tokens=NEW) for prompt in PROMPTS[1:3]]
    while bed.batch._requests and next(iter(bed.batch._requests.values())).session.stored < 128:
        bed.batch.next()
    assert [bed.batch.cached_tokens(uid) for uid in others] == [0, 0]
    assert bed.batch.cancel(first)
    with bed.generator.stats() as stats:
        answers = drain(bed.batch, others)
    assert answers == alone(model, PROMPTS[1:3])
    shared = exactly(model, store, len(SHARED))
    left = len(PROMPTS[1]) - 128 + len(PROMPTS[2]) - shared
    assert stats.prompt_tokens + 2 == left
    assert store.stats().requests.live_sessions == 0


@pytest.mark.parametrize("family", some(FAMILIES, "llama"))
def test_one_that_waits_can_be_cancelled(family: str, store: BlockStore) -> None:
    model = model_of(family)
    bed = Bed(model, store)
    bed.batch.submit(PROMPTS[0], max_tokens=NEW)
    waiting = bed.batch.submit(PROMPTS[1], max_tokens=NEW)
    bed.batch.next()
    assert bed.batch.cancel(waiting)
    assert len(bed.batch) == 1
    bed.batch.close()
    assert store.restores.nbytes == 0


@pytest.mark.parametrize("count", some([2, 4], 2))
@pytest.mark.parametrize("family", some(FAMILIES, "qwen3_next"))
def test_a_new_prefix_is_computed_once_by_the_reference_scheduler(
    family: str, count: int, store: BlockStore, scheduler: ModuleType
) -> None:
    model, prompts = model_of(family), PROMPTS[:count]
    made = scheduler.Scheduler(model, PrefixCache(model, store))
    # All are in the queue before the first begins.
    requests = [made.submit(scheduler.Request(prompt, max_tokens=NEW)) for prompt in prompts]
    made.stop()
    made.run()
    assert [request.answer() for request in requests] == alone(model, prompts)
    cached = exactly(model, store, len(SHARED))
    assert [request.cached_tokens for request in requests] == [0] + [cached] * (count - 1)
