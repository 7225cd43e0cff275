"""Continuous batching with reuse: the tokens of requests served alone, and memory given back."""

import gc
import time
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator

from kit.examples import some
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.batch import PREPARATIONS, CachedBatchGenerator
from omlx_cache_storage.hot import HotTier

from .conftest import Open, model_of, prompt_of

NEW = 12


def alone(model: Any, prompts: list[list[int]], most: int = NEW, **options: Any) -> list[list[int]]:
    """Tokens of each prompt when it has a generator to itself."""
    answers = []
    for prompt in prompts:
        generator = BatchGenerator(model, max_tokens=most, prefill_step_size=128, **options)
        generator.insert([prompt])
        answer: list[int] = []
        while responses := generator.next_generated():
            answer += [r.token for r in responses]
        generator.close()
        answers.append(answer)
    return answers


def serve(batch: CachedBatchGenerator, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """Tokens of all prompts, served together."""
    return drain(batch, [batch.submit(prompt, max_tokens=NEW, **options) for prompt in prompts])


def drain(batch: CachedBatchGenerator, uids: list[int]) -> list[list[int]]:
    """Serve what was submitted, and return the tokens of each."""
    answers: dict[int, list[int]] = {uid: [] for uid in uids}
    while len(batch):
        for token in batch.next():
            answers[token.uid].append(token.token)
    return list(answers.values())


def batch_of(model: Any, store: BlockStore, **options: Any) -> CachedBatchGenerator:
    generator = BatchGenerator(model, prefill_step_size=128, **options)
    return CachedBatchGenerator(generator, PrefixCache(model, store))


@pytest.mark.parametrize("family", some(["qwen3", "gemma3_text", "qwen3_next"], "gemma3_text"))
def test_answers_are_those_of_requests_alone(family: str, open_store: Open) -> None:
    model = model_of(family)
    shared = prompt_of(192)
    prompts = [shared + prompt_of(40 + 9 * n, seed=n + 1) for n in range(3)]
    expected = alone(model, prompts)
    store = open_store()
    for cached in (0, 1, 2):
        if cached == 2:
            # A new store, so that the pages are on the disk only.
            store = open_store()
        batch = batch_of(model, store)
        assert serve(batch, prompts, segments=[192]) == expected
        restored = store.stats().requests.restored_tokens
        if not cached:
            # Together in the batch: the first computes what the others wait for.
            assert restored == 2 * len(shared)
        else:
            assert restored >= sum(len(p) - 1 for p in prompts)
    follow_ups = [p + a + [5, 6, 7] for p, a in zip(prompts, expected, strict=True)]
    batch = batch_of(model, store)
    assert serve(batch, follow_ups) == alone(model, follow_ups)
    assert store.stats().requests.restored_tokens - restored >= sum(
        len(p) + len(a) for p, a in zip(prompts, expected, strict=True)
    )


def test_segments_are_restore_points_of_a_hybrid(store: BlockStore) -> None:
    model = model_of("qwen3_next")
    system = prompt_of(150)
    batch = batch_of(model, store)
    serve(batch, [system + prompt_of(30, seed=1)], segments=[150])
    uid = batch.submit(system + prompt_of(30, seed=2), max_tokens=2)
    assert batch.cached_tokens(uid) == 150
    batch.close()


def test_a_cancelled_request_frees_what_it_held(store: BlockStore) -> None:
    model = model_of("qwen3_next")
    batch = batch_of(model, store)
    kept, dropped = (batch.submit(prompt_of(300, seed=n), max_tokens=NEW) for n in (1, 2))
    batch.next()
    batch.next()
    assert batch.cancel(dropped)
    assert not batch.cancel(dropped)
    answer = []
    while len(batch):
        answer += [token for token in batch.next() if token.uid == kept]
    assert len(answer) == NEW
    assert [answer[-1].finish_reason, answer[0].finish_reason] == ["length", None]
    assert answer[-1].commit is not None
    assert answer[-1].commit.tokens == 300 + NEW
    stats = store.stats()
    assert stats.requests.live_sessions == 0
    assert stats.snapshots.live == 0


@pytest.mark.parametrize("family", some(["qwen3", "gemma3_text", "qwen3_next"], "qwen3_next"))
def test_nothing_but_pages_is_left_of_a_request(family: str, open_store: Open) -> None:
    model, store = model_of(family), open_store(hot_cache_only=True)
    batch = batch_of(model, store)

    def left_over() -> int:
        store.shrink_hot(0)
        gc.collect()
        mx.clear_cache()
        return int(mx.get_active_memory())

    serve(batch, [prompt_of(600, seed=98), prompt_of(500, seed=99)])
    before = left_over()
    for n in range(4):
        serve(batch, [prompt_of(600, seed=n), prompt_of(500, seed=10 + n)])
    # One 600-token cache of these models is 150 KiB and more; none may be left behind.
    assert left_over() - before < 64 * 1024


@pytest.mark.parametrize(
    ("tokens", "options", "said"),
    [
        ([1.0, 2.0], {}, ""),
        ([5, 2.5], {}, ""),
        ("hello", {}, ""),
        (None, {}, ""),
        ([[1, 2]], {}, ""),
        ([5, 2**63], {}, ""),
        ([5, 6], {"max_tokens": "3"}, ""),
        ([5, 6], {"max_tokens": 0}, "at least one"),
        ([5, 6], {"logits_processors": 5}, ""),
    ],
)
def test_what_the_generator_cannot_take_is_refused_before_it_disturbs_others(
    store: BlockStore, tokens: Any, options: dict[str, Any], said: str
) -> None:
    batch = batch_of(model_of("qwen3"), store)
    with pytest.raises(ValueError if said else (TypeError, ValueError), match=said or r"\w"):
        batch.submit(tokens, **{"max_tokens": NEW, **options})
    assert len(batch) == store.stats().requests.live_sessions == 0


def test_any_integers_are_tokens_of_a_batch(store: BlockStore) -> None:
    model, prompt = model_of("qwen3"), prompt_of(50)
    prompts: list[Any] = [np.array(prompt), [np.int64(token) for token in prompt], mx.array(prompt)]
    answers = serve(batch_of(model, store), prompts)
    assert answers == alone(model, [prompt]) * len(prompts)


def test_a_cache_of_another_model_is_refused(store: BlockStore) -> None:
    generator = BatchGenerator(model_of("llama"))
    with pytest.raises(ValueError, match="is not the one of the PrefixCache"):
        CachedBatchGenerator(generator, PrefixCache(model_of("qwen3"), store))


def test_how_an_answer_ended_is_asked_when_it_did(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HotTier, "patience_ns", 25_000_000_000)
    model = model_of("llama")
    prompt = prompt_of(96)
    (answer,) = alone(model, [prompt])
    asked: list[list[int]] = []

    def ended(how: str) -> Any:
        def tell(tokens: list[int]) -> str:
            asked.append(tokens)
            if how == "broken":
                raise ValueError(how)
            return how

        return tell

    def age(how: str) -> float:
        store = open_store()
        store.clear(store.hot.entries()[0].meta.namespace) if store.hot.entries() else None
        batch = batch_of(model, store, stop_tokens=[[answer[5]]])
        serve(batch, [prompt], ended=ended(how))
        return (time.time_ns() - max(e.stamp_ns for e in store.hot.entries())) / 1e9

    assert age("turn") > 25
    assert age("tool_call") < 20
    assert age("broken") < 20
    assert asked[0][:5] == answer[:5]
    assert len(asked) == 3


def test_a_prompt_is_prepared_while_there_is_no_request_and_given_up_by_one(
    open_store: Open,
) -> None:
    model, store = model_of("qwen3"), open_store()
    batch = batch_of(model, store)
    prompt, other = prompt_of(300), prompt_of(300, seed=5)
    batch.prepare(prompt)
    batch.prepare(other)
    while (counted := store.stats().requests).prepared_tokens <= len(prompt):
        assert batch.next() == []
    uid = batch.submit([*other, 1, 2], max_tokens=4)
    assert batch.next() != [] or batch.cached_tokens(uid)
    assert batch.cached_tokens(uid) == counted.prepared_tokens - len(prompt)
    while len(batch):
        batch.next()
    uid = batch.submit([*prompt, 1, 2], max_tokens=4)
    assert batch.cached_tokens(uid) == len(prompt)
    for number in range(PREPARATIONS):
        batch.prepare(prompt_of(900, seed=number))
    first = batch._preparations[0]
    batch.prepare(prompt_of(900, seed=PREPARATIONS))
    assert len(batch._preparations) == PREPARATIONS
    assert first.is_over
    batch.close()
    assert batch.next() == []
