"""Check this cache in the real vllm-mlx's batches for models with images: their text requests,
which are the only ones that its cache serves, get the tokens that they get without any cache, and
restore no less than with its own.

The generator is its own; what it computes is a small text model in the language model's place.
Needs mlx-vlm beside vllm-mlx (`make test-peers`).
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from checking import hidden, run_checks
from driving import PeerAnswer, loaded, prompt_of, store_in
from vllm_mlx.memory_cache import MemoryCacheConfig
from vllm_mlx.mllm_batch_generator import MLLMBatchGenerator, MLLMBatchRequest

from omlx_cache.integrations.host_server import VLLM_GENERATOR
from omlx_cache.integrations.vllm_mlx import TieredPrefixCache, install, launch

FOLDER = Path(tempfile.mkdtemp())
FAMILIES = ("qwen3", "qwen3_next", "gemma3_text")
ANSWER = 8


def generator(of: Any, cached: bool) -> Any:
    """Return its generator for a language model, with its own cache or none."""
    return MLLMBatchGenerator(
        SimpleNamespace(language_model=of.model),
        SimpleNamespace(tokenizer=of.tokenizer),
        enable_vision_cache=False,
        prefix_cache_config=MemoryCacheConfig() if cached else None,
    )


def ask(serving: Any, prompt: list[int]) -> PeerAnswer:
    """Serve one text request; what was restored is what the cache counted."""

    def saved() -> int:
        cache = serving.prefix_cache
        return 0 if cache is None else cache.get_stats()["tokens_saved"]

    before = saved()
    asked = MLLMBatchRequest(
        uid=-1,
        request_id=f"request-{serving.uid_counter}",
        prompt="",
        max_tokens=ANSWER,
        temperature=0.0,
        input_ids=mx.array([prompt]),
    )
    serving.insert([asked])
    given: list[int] = []
    for _step in range(4 * ANSWER):
        for response in serving.next():
            given.append(response.token)
            if response.finish_reason is not None:
                # A whole prompt that was found is rewound by a token, which is computed.
                cached = min(saved() - before, len(prompt) - 1)
                return PeerAnswer(len(prompt), cached, tuple(given))
    raise AssertionError("no end of an answer")


def conversation(serving: Any) -> list[PeerAnswer]:
    """Two turns; then the second prompt again, and one that parts from it."""
    first = prompt_of(400)
    answers = [ask(serving, first)]
    second = [*first, *answers[0].tokens, *prompt_of(40, 5)]
    answers.append(ask(serving, second))
    answers.append(ask(serving, second))
    answers.append(ask(serving, [*second[:430], *prompt_of(50, 6)]))
    return answers


def check(family: str) -> None:
    """Hold a conversation without a cache, with its own and with this one, and once more after a
    restart of the store."""
    model = loaded(FOLDER, family)
    plain = conversation(generator(model, False))
    theirs = conversation(generator(model, True))
    directory = Path(tempfile.mkdtemp(dir=FOLDER))
    runs = []
    for _start in range(2):
        with store_in(directory) as store:
            serving = generator(model, True)
            install(serving, store)
            runs.append(conversation(serving))
    ours, again = runs
    hits = [(a.cached, b.cached, c.cached) for a, b, c in zip(ours, theirs, again, strict=True)]
    print(f"       {family:12} ours, theirs, ours after a restart: {hits}")
    for given in runs:
        assert [answer.tokens for answer in given] == [answer.tokens for answer in plain], family
    assert all(mine >= other for mine, other, _again in hits), hits
    assert again[1].cached >= 400, hits


def texts_of_models_with_images() -> None:
    for family in FAMILIES:
        check(family)


def its_own_command_gets_this_cache() -> None:
    model, own = loaded(FOLDER, "qwen3"), MLLMBatchGenerator.__init__
    with store_in(Path(tempfile.mkdtemp(dir=FOLDER))) as store:
        try:
            launch.place(lambda: store)
            assert conversation(generator(model, True))[1].cached
            assert store.hot_usage().nbytes
            assert generator(model, False).prefix_cache is None
            for name in VLLM_GENERATOR:
                with hidden(name):
                    serving = generator(model, True)
                assert not isinstance(serving.prefix_cache, TieredPrefixCache), name
        finally:
            MLLMBatchGenerator.__init__ = own
    assert ask(serving, prompt_of(40)).tokens


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    checks = (texts_of_models_with_images, its_own_command_gets_this_cache)
    sys.exit(run_checks("vllm-mlx's generator for models with images", checks))
