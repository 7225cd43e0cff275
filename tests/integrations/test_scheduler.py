"""The reference scheduler of examples/, as a user would run it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kit.examples import some
from omlx_cache import BlockStore, PrefixCache

from .conftest import Open, model_of, prompt_of
from .test_batch import alone


@contextmanager
def running(module: ModuleType, model: Any, store: BlockStore) -> Iterator[Any]:
    """A scheduler whose requests come from another thread, as a server's do."""
    made = module.Scheduler(model, PrefixCache(model, store))
    clients: list[threading.Thread] = []

    def client(work: Callable[[Any], None]) -> None:
        clients.append(threading.Thread(target=work, args=(made,)))
        clients[-1].start()

    yield client

    def end() -> None:
        for thread in clients:
            thread.join()
        made.stop()

    closer = threading.Thread(target=end)
    closer.start()
    made.run()
    closer.join()


@pytest.mark.parametrize("family", some(["qwen3", "gemma3_text", "qwen3_next"], "qwen3"))
def test_answers_are_right_and_prefixes_are_reused(
    family: str, scheduler: ModuleType, open_store: Open
) -> None:
    model = model_of(family)
    shared = prompt_of(300)
    prompts = [shared + prompt_of(60, seed=n) for n in (1, 2, 3)]
    expected = alone(model, prompts, 10)
    for run in range(2):
        answers: list[tuple[int, list[int]]] = []

        def ask(made: Any, found: list[tuple[int, list[int]]] = answers) -> None:
            for prompt in prompts:
                request = made.submit(scheduler.Request(prompt, max_tokens=10))
                found.append((request, request.answer()))

        with running(scheduler, model, open_store()) as client:
            client(ask)
        assert [answer for _request, answer in answers] == expected
        cached = [request.cached_tokens for request, _answer in answers]
        # One after the other: the second request finds the first one's prompt.
        assert cached[1] >= 256 if family != "qwen3_next" else cached[2] >= 256
        assert cached[0] == (0 if run == 0 else len(prompts[0]) - 1)
    follow_up = scheduler.Request([*prompts[0], *expected[0], 1, 2, 3], max_tokens=4)
    with running(scheduler, model, open_store()) as client:
        client(lambda made: made.submit(follow_up).answer())
    assert follow_up.cached_tokens == len(prompts[0]) + len(expected[0])


def test_requests_are_batched_and_can_be_cancelled(
    scheduler: ModuleType, store: BlockStore
) -> None:
    model = model_of("qwen3")
    prompts = [prompt_of(100 + n, seed=n) for n in range(4)]
    answers: dict[int, list[int]] = {}

    def ask(made: Any) -> None:
        requests = [made.submit(scheduler.Request(p, max_tokens=30)) for p in prompts]
        made.cancel(requests[1])
        answers.update({n: r.answer() for n, r in enumerate(requests)})
        assert all(r.done.is_set() for r in requests)

    with running(scheduler, model, store) as client:
        client(ask)
    assert len(answers.pop(1)) < 30
    assert list(answers.values()) == alone(model, [prompts[n] for n in (0, 2, 3)], 30)
    assert store.stats().requests.live_sessions == 0


def test_what_will_be_asked_for_is_computed_while_there_is_nothing_else_to_do(
    scheduler: ModuleType, open_store: Open
) -> None:
    model, store = model_of("qwen3"), open_store()
    prompts = [prompt_of(300, seed=n) for n in (1, 2)]
    asked: list[Any] = []
    answers: list[list[int]] = []

    def ask(made: Any) -> None:
        made.prepare(prompts[0])
        while store.stats().requests.prepared_tokens < 300:
            time.sleep(0.01)
        for prompt in prompts:
            asked.append(made.submit(scheduler.Request([*prompt, 1, 2], max_tokens=4)))
            answers.append(asked[-1].answer())
        # What is asked for at once is given up, and all that was computed of it is found.
        made.prepare([*prompts[1], *prompts[0]])
        before = store.stats().requests.prepared_tokens
        while store.stats().requests.prepared_tokens == before:
            time.sleep(0.001)
        asked.append(made.submit(scheduler.Request([*prompts[1], *prompts[0]], max_tokens=4)))
        asked[-1].answer()

    with running(scheduler, model, store) as client:
        client(ask)
    assert answers == alone(model, [[*prompt, 1, 2] for prompt in prompts], 4)
    prepared = store.stats().requests.prepared_tokens - 300
    assert asked[0].cached_tokens == 300
    # One that is looked up before what is computed was given up gets the whole blocks of that.
    blocks = [request.cached_tokens // 64 for request in asked]
    assert blocks == [300 // 64, 0, min(300 + prepared, 599) // 64]


@pytest.mark.parametrize(
    ("prompt", "max_tokens"),
    [
        ([], 4),
        ([1.5], 4),
        ([2**63], 4),
        ([True], 4),
        (None, 4),
        ("text", 4),
        (mx.array([1, 2]), 4),
        (np.array([1, 2]), 4),
        ([1, 2], 0),
        ([1, 2], None),
    ],
)
def test_a_prompt_that_cannot_be_fed_is_refused(
    scheduler: ModuleType, store: BlockStore, prompt: Any, max_tokens: Any
) -> None:
    made = scheduler.Scheduler(model := model_of("qwen3"), PrefixCache(model, store))
    with pytest.raises(ValueError, match=r"list of token ids|max_tokens of at least 1"):
        made.submit(scheduler.Request(prompt, max_tokens=max_tokens))


def test_a_request_that_fails_ends_alone(scheduler: ModuleType, store: BlockStore) -> None:
    model, prompts = model_of("qwen3"), [prompt_of(100, seed=n) for n in range(3)]
    cannot = [5] * 40

    class Fails:
        layers = model.layers

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def __call__(self, tokens: Any, **options: Any) -> Any:
            if tokens[0, 0].item() == 5:
                raise MemoryError("no room")
            return model(tokens, **options)

    def hints(answer: list[int]) -> str:
        raise KeyError("hint")

    answers: list[list[int]] = []

    def ask(made: Any) -> None:
        made._model = Fails()
        good = [made.submit(scheduler.Request(p, max_tokens=8)) for p in prompts[:2]]
        fails = made.submit(scheduler.Request(cannot, max_tokens=8))
        odd = made.submit(scheduler.Request(prompts[2], max_tokens=8, ended=hints))
        with pytest.raises(MemoryError, match="no room"):
            fails.answer()
        with pytest.raises(KeyError, match="hint"):
            odd.answer()
        answers.extend(request.answer() for request in good)

    with running(scheduler, model, store) as client:
        client(ask)
    assert answers == alone(model, prompts[:2], 8)
    assert store.stats().requests.live_sessions == 0


def test_no_client_waits_for_a_loop_that_has_ended(
    scheduler: ModuleType, store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scheduler.Scheduler(model := model_of("qwen3"), PrefixCache(model, store))
    requests = [
        made.submit(scheduler.Request(prompt_of(n, seed=n), max_tokens=50)) for n in (20, 1400, 30)
    ]
    decode, steps = made._decode_a_step, iter(range(4))

    def step() -> None:
        if next(steps, None) is None:
            raise ZeroDivisionError
        decode()

    monkeypatch.setattr(made, "_decode_a_step", step)
    with pytest.raises(ZeroDivisionError):
        made.run()
    for request in requests:
        assert request.done.is_set()
        with pytest.raises(ZeroDivisionError):
            request.answer()
    with pytest.raises(RuntimeError, match="the scheduler has ended"):
        made.submit(scheduler.Request([1, 2, 3])).answer()
    assert store.stats().requests.live_sessions == 0
