"""`omlx-cache warm`: prefill prompts ahead of their use and commit them to the disk."""

import argparse
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.server import ModelProvider, process_message_content

from omlx_cache.integrations.launching import check_cold_dir
from omlx_cache.integrations.mlx_lm.holdings import check_opened
from omlx_cache.integrations.mlx_lm.models import cache_of, load_default
from omlx_cache.prefix import PrefixCache
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.names import LONGEST_WAIT, ConfigError
from omlx_cache.store import BlockStore
from omlx_cache.tools.prompt_file import Prompt
from omlx_cache.tools.warm_report import Progress, WarmReport


class Warmable(NamedTuple):
    """Tokens worth keeping, and the token counts inside at which a chat's parts end."""

    tokens: list[int]
    segments: list[int]


def warm(
    args: argparse.Namespace,
    settings: Mapping[str, Any],
    prompts: Sequence[Prompt],
    progress: Progress,
) -> WarmReport:
    """Load the model, prefill what the store lacks of each prompt, and wait for the disk.

    Running it again computes nothing. `progress(done, total)` counts tokens. Raises ConfigError,
    CannotKeep and CannotLoad.
    """
    # Nothing else waits for this process, so no write needs to be dropped.
    cache_settings = CacheSettings(**{"commit_wait_seconds": LONGEST_WAIT, **settings})
    if cache_settings.hot_cache_only:
        raise ConfigError("hot_cache_only leaves nothing behind when this command ends")
    check_cold_dir(cache_settings)
    provider = ModelProvider(args)
    load_default(provider)
    model, tokenizer, draft = provider.model, provider.tokenizer, provider.draft_model
    jobs = [warmable(prompt, tokenizer, args.chat_template_args) for prompt in prompts]
    with BlockStore(cache_settings, name="warm") as store:
        check_opened(store)
        models = [(model, cache_of(model, store, args.model, args.adapter_path))]
        if draft is not None:
            models.append((draft, cache_of(draft, store, args.draft_model)))
        counts = _run(models, jobs, args.prefill_step_size, progress)
        durable = store.close(timeout=600.0)
        writer = store.stats().writer
    written = 0 if writer is None else writer.written_bytes
    return WarmReport(
        len(jobs), counts[0], counts[1], written, str(cache_settings.cold_dir), durable
    )


def _run(
    models: Sequence[tuple[Any, PrefixCache]],
    jobs: Sequence[Warmable],
    step: int,
    progress: Progress,
) -> tuple[int, int]:
    """Return how many prompts were warm already and how many tokens were computed."""
    total = sum(len(job.tokens) for job in jobs) * len(models)
    done = computed = warm_already = 0
    for job in jobs:
        before = computed
        for model, cache in models:
            start = done
            for fed in _prefill(model, cache, job, step):
                computed += fed
                done += fed
                progress(done, total)
            done = start + len(job.tokens)
            progress(done, total)
        warm_already += computed == before
    return warm_already, computed


def _prefill(model: Any, cache: PrefixCache, job: Warmable, step: int) -> Any:
    """Yield the tokens computed, a chunk at a time; nothing for what is stored."""
    # A look-up leaves out the last token, so that one more is asked for.
    if cache.lookup([*job.tokens, 0]).cached_tokens == len(job.tokens):
        return
    with cache.session(job.tokens, max_new_tokens=0) as session:
        session.want_snapshots(job.segments)
        for chunk in session.prefill_chunks(step):
            model(mx.array([chunk]), cache=session.prompt_cache)
            mx.eval([c.state for c in session.prompt_cache])
            yield len(chunk)
        session.commit()


def warmable(prompt: Prompt, tokenizer: Any, template: Mapping[str, Any]) -> Warmable:
    """Return what a request with this prompt could restore: all of it but its last token.

    A chat of system messages only gives what every chat that begins with them shares.
    """
    if not prompt.messages:
        return Warmable(list(tokenizer.encode(prompt.text))[:-1], [])
    messages = [dict(message) for message in deepcopy(list(prompt.messages))]
    process_message_content(messages)
    options = {**template, "tools": prompt.tools}
    count = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    system = _shared(messages[:count], tokenizer, options) if count else []
    if count == len(messages):
        return Warmable(system, [])
    tokens = _render(messages, tokenizer, options)[:-1]
    shared = len(system) if tokens[: len(system)] == system else 0
    return Warmable(tokens, [shared] if shared else [])


def _shared(system: list[dict[str, Any]], tokenizer: Any, options: Mapping[str, Any]) -> list[int]:
    """Return the tokens with which every chat of these system messages begins."""
    one, two = (
        _render([*system, {"role": "user", "content": content}], tokenizer, options)
        for content in ("", "x")
    )
    pairs = enumerate(zip(one, two, strict=False))
    return one[: next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)))]


def _render(
    messages: list[dict[str, Any]], tokenizer: Any, options: Mapping[str, Any]
) -> list[int]:
    rendered = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, **options
    )
    return [int(token) for token in rendered]
