"""Rows of a batch after an error of one of them: the tokens that they would have had anyway."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator

from kit.examples import some
from kit.versions import stops
from kit.zoo.family import FAMILIES, build_model
from omlx_cache.integrations.mlx_lm.batches import ServedBatches
from omlx_cache.integrations.rows import row_caches
from omlx_cache.mlx_lm_versions import stop_options

from .conftest import FailingModel

BAD = 255
PROMPTS = [[3 + (n * 11 + i * i) % 200 for i in range(20 + 9 * n)] for n in range(4)]
TOKENS = 24


class FailingRequest:
    """Keeps the error that a row was ended with."""

    flight = asked = is_over = None
    has_left = bool

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


class KeepsNothing:
    """Keeps nothing: rows are computed again from their first token on."""

    key = None

    def follow(self, tokens: Any) -> None: ...

    def flight(self, *prompt: Any) -> None: ...

    def refetch(self, tokens: list[int]) -> tuple[None, list[int]]:
        return None, tokens


def failing(model: Any, call: int = 0) -> FailingModel:
    """Fails when it is fed the bad token, and at its `call`-th call."""
    return FailingModel(model, lambda calls, inputs: calls == call or bool(mx.any(inputs == BAD)))


@pytest.fixture(params=some(["qwen3", "gemma3_text", "qwen3_next"], "qwen3_next"), scope="module")
def model(request: pytest.FixtureRequest) -> Any:
    family = FAMILIES[request.param]
    return build_model(family.config["model_type"], dict(family.config), family.dtype, 0)


@pytest.fixture
def request_() -> FailingRequest:
    return FailingRequest()


@pytest.fixture
def make(request_: FailingRequest) -> Iterator[Any]:
    made = []

    def generator(model: Any) -> ServedBatches:
        request: Any = request_
        made.append(ServedBatches(KeepsNothing(), lambda: request, model, prefill_step_size=16))
        return made[-1]

    yield generator
    for each in made:
        each.close()


def expected(model: Any) -> list[list[int]]:
    generator = BatchGenerator(model, prefill_step_size=16)
    own = [row_caches(generator, None) for _ in PROMPTS]
    uids = generator.insert(PROMPTS, [TOKENS] * len(PROMPTS), own)
    found = run(generator)
    generator.close()
    return [found[uid] for uid in uids]


def run(generator: Any, most: int = 400) -> dict[int, list[int]]:
    """Step to the end; returns the tokens of each row."""
    said: dict[int, list[int]] = {}
    idle = 0
    for _ in range(most):
        prompts, generated = generator.next()
        for response in generated:
            said.setdefault(response.uid, []).append(response.token)
        idle = 0 if prompts or generated else idle + 1
        if idle > 2:
            return said
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("position", some([0, 1, 17, 40], 0, 17))
def test_a_bad_prompt_costs_the_others_nothing(
    position: int, model: Any, make: Any, request_: FailingRequest
) -> None:
    generator = make(failing(model))
    uids = generator.insert(PROMPTS, [TOKENS] * 4)
    for _ in range(5):
        generator.next()
    begun = {uid: list(row.said) for uid, row in generator._rows.items()}
    filler = [7] * 41
    filler[position] = BAD
    generator.insert([filler], [TOKENS])
    rest = run(generator)
    assert [begun[uid] + rest[uid] for uid in uids] == expected(model)
    assert [str(error) for error in request_.errors] == ["the bad token"]
    assert not generator._rows


@pytest.mark.parametrize("calls", some([1, 3, 6, 9, 15], 1, 9))
def test_an_error_that_no_row_repeats_costs_nobody_anything(
    calls: int, model: Any, make: Any, request_: FailingRequest
) -> None:
    generator = make(failing(model, calls))
    uids = generator.insert(PROMPTS, [TOKENS] * 4)
    found = run(generator)
    assert [found[uid] for uid in uids] == expected(model)
    assert request_.errors == []


def test_rows_that_are_removed_while_each_is_computed_alone_are_not_missed(
    model: Any, make: Any
) -> None:
    for gone in (0, 3):
        generator = make(failing(model, 6))
        uids = generator.insert(PROMPTS, [TOKENS] * 4)
        while uids[gone] not in generator._suspects[:1]:
            generator.next()
        said = {uid: list(row.said) for uid, row in generator._rows.items()}
        generator.remove([uids[gone]])
        rest = run(generator)
        assert set(rest) == set(uids) - {uids[gone]}
        for number, uid in enumerate(uids):
            if uid in rest:
                assert said[uid] + rest[uid] == expected(model)[number]


def test_a_stop_sequence_that_was_half_seen_still_stops(model: Any, make: Any) -> None:
    whole = expected(model)[0]
    stop = tuple(whole[4:7])
    stopped = {next(iter(stop_options(0))): [stops(stop)] + [stops()] * 3}
    calm = make(model)
    first = calm.insert(PROMPTS, [TOKENS] * 4, **stopped)[0]
    ends = len(run(calm)[first])
    for calls in (5, 8, 11):
        generator = make(failing(model, calls))
        uid = generator.insert(PROMPTS, [TOKENS] * 4, **stopped)[0]
        assert len(run(generator)[uid]) == ends
