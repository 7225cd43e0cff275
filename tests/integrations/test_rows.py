"""A row of a batch stops where it is told to, before it starts and in mid-prefill, and computes
the same."""

from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import BatchGenerator

from kit.examples import some
from kit.versions import since_0_32
from omlx_cache.adapters.registry import extract_row
from omlx_cache.integrations.rows import row_of, stop_row_at

from .conftest import model_of, prompt_of

PROMPTS = [prompt_of(150, seed=1), prompt_of(90, seed=2)]


def generator_of(family: str = "qwen3") -> BatchGenerator:
    return BatchGenerator(model_of(family), max_tokens=6, prefill_step_size=32)


def run(generator: BatchGenerator, start: dict[int, int]) -> tuple[dict[int, list[int]], Any]:
    """Return the tokens of all rows, and the token counts at which their segments ended."""
    answers: dict[int, list[int]] = {uid: [] for uid in start}
    ends: dict[int, list[int]] = {uid: [] for uid in start}
    while any(len(answer) < 6 for answer in answers.values()):
        prompts, generated = generator.next()
        for response in prompts:
            if response.end_of_segment and not response.end_of_prompt:
                ends[response.uid].append(start[response.uid] + response.progress[0])
        for token in generated:
            answers[token.uid].append(token.token)
    return answers, ends


HYBRID = since_0_32("qwen3_next", "the padding of a plain batch is computed into its states")


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", HYBRID])
@pytest.mark.parametrize("steps", some([0, 1, 2], 1))
def test_a_row_stops_there_and_computes_the_same(family: str, steps: int) -> None:
    plain = generator_of(family)
    expected, _ends = run(plain, dict.fromkeys(plain.insert(PROMPTS), 0))
    generator = generator_of(family)
    uids = generator.insert(PROMPTS)
    for _ in range(steps):
        generator.next()
    assert stop_row_at(generator, uids[0], 101)
    assert stop_row_at(generator, uids[0], 70)
    answers, ends = run(generator, dict.fromkeys(uids, 0))
    assert ends[uids[0]] == [70, 101, 149]
    assert ends[uids[1]] == [89]
    assert list(answers.values()) == list(expected.values())


@pytest.mark.parametrize("position", [-1, 0, 64, 150, 151])
def test_what_is_past_or_leaves_no_token_to_feed_is_refused(position: int) -> None:
    generator = generator_of()
    (uid,) = generator.insert(PROMPTS[:1])
    generator.next()
    generator.next()
    assert not stop_row_at(generator, uid, position)
    answers, ends = run(generator, {uid: 0})
    assert ends[uid] == [149]
    assert len(answers[uid]) == 6
    assert not stop_row_at(generator, uid, 149)


def test_rows_and_generators_that_are_not_there_are_refused() -> None:
    generator = generator_of()
    (uid,) = generator.insert(PROMPTS[:1])
    assert not stop_row_at(generator, uid + 1, 70)
    assert not stop_row_at(object(), uid, 70)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", HYBRID])
@pytest.mark.parametrize("steps", some([1, 3, 7], 1))
def test_a_row_is_what_the_batch_extracts(family: str, steps: int) -> None:
    generator = generator_of(family)
    uids = generator.insert(PROMPTS)
    for _ in range(steps):
        generator.next()
    for uid in uids:
        row, (extracted, _tokens) = row_of(generator, uid), generator.extract_cache([uid])[uid]
        assert row is not None
        found = [extract_row(cache, row.slot) for cache in row.caches]
        assert list(map(type, found)) == list(map(type, extracted))
        assert [vars(one).get("offset") for one in found] == [
            vars(one).get("offset") for one in extracted
        ]
        states, expected = (
            [
                (name, state.tolist() if isinstance(state, mx.array) else state)
                for name, state in tree_flatten(held)
            ]
            for held in ([one.state for one in found], [one.state for one in extracted])
        )
        assert states == expected
