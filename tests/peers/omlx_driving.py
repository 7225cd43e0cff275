"""oMLX's own scheduler, driven through its public calls, with this cache, with its own or none."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import driving
from driving import ANSWER, Loaded, PeerAnswer
from omlx.request import Request, SamplingParams
from omlx.scheduler import Scheduler, SchedulerConfig

from omlx_cache.integrations.omlx import install

_numbers = itertools.count()
store_in = partial(driving.store_in, worth_reading="off")
"""What is on the disk is read, however fast the small models compute."""


def request(prompt: Sequence[int], most: int = ANSWER) -> Request:
    """Return a new request for so many tokens, the likeliest ones."""
    params = SamplingParams(max_tokens=most, temperature=0.0, top_p=1.0)
    return Request(f"request-{next(_numbers)}", list(prompt), params)


def scheduler(of: Loaded, disk: Path | None = None, **options: Any) -> Any:
    """Return a scheduler of the model that stops at no token: with a directory it has a cache of
    its own and a thread that stores, and makes its blocks larger for some models."""
    config = SchedulerConfig(
        model_name="a model",
        paged_cache_block_size=64,
        paged_ssd_cache_dir=None if disk is None else str(disk),
        paged_ssd_cache_max_size=1 << 30,
        **options,
    )
    made = Scheduler(of.model, of.tokenizer, config)
    made._get_stop_tokens = lambda: set()
    return made


def finish(serving: Any) -> None:
    """Serve to the end of every request, and of what stores them."""
    while serving.has_requests() or serving._pending_async_removes:
        serving.step()


def answer_of(asked: Request) -> PeerAnswer:
    """Return what a request got that has ended."""
    return PeerAnswer(asked.num_prompt_tokens, asked.cached_tokens, tuple(asked.output_token_ids))


def answers(serving: Any, prompts: Sequence[Sequence[int]]) -> list[PeerAnswer]:
    """Serve requests that arrive together, to the end of all."""
    requests = [request(prompt) for prompt in prompts]
    for asked in requests:
        serving.add_request(asked)
    finish(serving)
    return [answer_of(asked) for asked in requests]


def ask(serving: Any, prompt: Sequence[int]) -> PeerAnswer:
    """Serve one request."""
    return answers(serving, [prompt])[0]


@contextmanager
def ours(of: Loaded, directory: Path | None = None, *, disk: bool, **options: Any) -> Iterator[Any]:
    """A scheduler with this cache, and with a directory of oMLX's own or without."""
    with (
        tempfile.TemporaryDirectory() as fresh,
        tempfile.TemporaryDirectory() as own,
        store_in(directory or Path(fresh)) as store,
    ):
        serving = scheduler(of, Path(own) if disk else None, **options)
        install(serving, store)
        yield serving
        serving.shutdown()


@contextmanager
def theirs(of: Loaded, directory: Path | None = None) -> Iterator[Any]:
    """A scheduler with oMLX's own cache."""
    with tempfile.TemporaryDirectory() as fresh:
        serving = scheduler(of, directory or Path(fresh))
        yield serving
        serving.shutdown()
