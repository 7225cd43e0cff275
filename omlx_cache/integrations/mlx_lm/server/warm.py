"""`omlx-cache warm`: prefill prompts ahead of their use and commit them to the disk."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm import load

from omlx_cache.integrations.mlx_lm.server.loading import check_cold_dir, check_opened, loading
from omlx_cache.integrations.mlx_lm.server.warmable import Warmable, warmable
from omlx_cache.integrations.mlx_lm.shared import cache_of
from omlx_cache.prefix import PrefixCache
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.names import LONGEST_WAIT, ConfigError
from omlx_cache.store import BlockStore
from omlx_cache.tools.prompt_file import Prompt
from omlx_cache.tools.warm_report import Progress, WarmReport


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
    with loading(args):
        model, tokenizer, draft = _load(args)
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


def _load(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return the model, its tokenizer, and the draft model or None."""
    model, tokenizer = load(
        args.model,
        adapter_path=args.adapter_path,
        tokenizer_config=_tokenizer_config(args),
        trust_remote_code=args.trust_remote_code,
    )
    if args.use_default_chat_template and tokenizer.chat_template is None:
        tokenizer.chat_template = tokenizer.default_chat_template
    draft = None if args.draft_model is None else load(args.draft_model)[0]
    return model, tokenizer, draft


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


def _tokenizer_config(args: argparse.Namespace) -> dict[str, Any]:
    config: dict[str, Any] = {"trust_remote_code": args.trust_remote_code}
    if args.chat_template:
        config["chat_template"] = args.chat_template
    return config
