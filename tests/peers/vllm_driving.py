"""vllm-mlx's own scheduler, driven through its public calls, with one cache or another."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from driving import ANSWER, Loaded, PeerAnswer, prompt_of, store_in
from vllm_mlx.request import Request, SamplingParams
from vllm_mlx.scheduler import Scheduler, SchedulerConfig

from omlx_cache.integrations.vllm_mlx import install

_numbers = itertools.count()


def request(
    prompt: Sequence[int], most: int = ANSWER, boundary: int = 0, **sampling: Any
) -> Request:
    """Return a new request for so many tokens, the likeliest ones; `boundary` is where its chat's
    last message begins."""
    params = SamplingParams(max_tokens=most, temperature=0.0, top_p=1.0, **sampling)
    name = f"request-{next(_numbers)}"
    return Request(name, list(prompt), params, prefix_boundary=boundary)


def scheduler(of: Loaded, **options: Any) -> Any:
    """Return a scheduler of the model that stops at no token."""
    made = Scheduler(of.model, of.tokenizer, SchedulerConfig(**options))
    made._get_stop_tokens = lambda: set()
    return made


def answers(serving: Any, requests: Sequence[Request]) -> list[PeerAnswer]:
    """Serve requests together, to the end of all."""
    cached: dict[str, int] = {}
    for asked in requests:
        serving.add_request(asked)
    while serving.has_requests():
        serving.step()
        for asked in requests:
            # A hit is dropped while a request is scheduled, if it is: what is left counts.
            if asked.request_id in serving.running and asked.request_id not in cached:
                cached[asked.request_id] = asked.cached_tokens
    return [
        PeerAnswer(
            asked.num_prompt_tokens,
            cached.get(asked.request_id, asked.cached_tokens),
            tuple(serving.remove_finished_request(asked.request_id).output_token_ids),
        )
        for asked in requests
    ]


def ask(serving: Any, prompt: Sequence[int], most: int = ANSWER) -> PeerAnswer:
    """Serve one request."""
    return answers(serving, [request(prompt, most)])[0]


def conversation(serving: Any, turns: int = 3, length: int = 400) -> list[PeerAnswer]:
    """Hold one: each prompt goes on from the answer before."""
    prompt, given = prompt_of(length), []
    for turn in range(turns):
        given.append(ask(serving, prompt))
        prompt = [*prompt, *given[-1].tokens, *prompt_of(40, 5 + turn)]
    return given


@contextmanager
def ours(of: Loaded, directory: Path | None = None, **options: Any) -> Iterator[Any]:
    """A scheduler with this cache."""
    with tempfile.TemporaryDirectory() as fresh, store_in(directory or Path(fresh)) as store:
        serving = scheduler(of, **options)
        install(serving, store)
        yield serving


def theirs(of: Loaded, **options: Any) -> Any:
    """A scheduler with vllm-mlx's own cache."""
    return scheduler(of, **options)


def none(of: Loaded, **options: Any) -> Any:
    """A scheduler without any cache."""
    return scheduler(of, enable_prefix_cache=False, **options)


Scenario = Callable[[Any], list[PeerAnswer]]
