"""mlx-lm's `generate` and `stream_generate` with a prefix cache behind them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationResponse, generation_stream, wired_limit
from mlx_lm.generate import stream_generate as upstream
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx_cache.integrations.lanes import (
    QUANTIZED_KV_START,
    Bits,
    lane_of,
    packed_as,
    restored_from,
)
from omlx_cache.prefix import PrefixCache
from omlx_cache.scope import Scopes
from omlx_cache.session import Session
from omlx_cache_storage.keys import as_tokens

LogitsProcessor = Callable[[Any, Any], Any]
Progress = Callable[[int, int], None]


def generate(model: Any, tokenizer: Any, prompt: Any, cache: PrefixCache, **options: Any) -> str:
    """Return the whole answer; options are those of `stream_generate`."""
    return "".join(
        part.text for part in stream_generate(model, tokenizer, prompt, cache, **options)
    )


def stream_generate(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int],
    cache: PrefixCache,
    *,
    salt: str | bytes | None = None,
    max_tokens: int = 256,
    draft_model: Any = None,
    draft_cache: PrefixCache | None = None,
    max_kv_size: int | None = None,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = QUANTIZED_KV_START,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    prefill_step_size: int = 2048,
    prompt_progress_callback: Progress | None = None,
    **options: Any,
) -> Iterator[GenerationResponse]:
    """Yield mlx-lm's responses for a prompt whose stored prefix is restored, and store the new
    blocks.

    `draft_cache` is the draft model's. Generated tokens are stored when the answer ends or the
    caller stops reading, not when an exception ends it. Logits processors see the whole prompt.
    `options` go to mlx-lm. Raises ValueError for `input_embeddings`, and for a draft model without
    its cache.
    """
    if options.get("input_embeddings") is not None:
        raise ValueError("input_embeddings cannot be cached: their tokens do not identify them")
    if draft_model is not None and draft_cache is None:
        raise ValueError("a draft model needs its own draft_cache=PrefixCache(draft_model, store)")
    tokens = _encode(tokenizer, prompt)
    options["max_tokens"] = max_tokens
    if draft_model is None and kv_bits is None:
        if max_kv_size is not None:
            cache = cache.with_caches(lambda: make_prompt_cache(model, max_kv_size))
        # The model's own loop gets the last token only: everything before it is prefilled here.
        options["logits_processors"] = _seeing(tokens[:-1], logits_processors)
        with cache.session(tokens, salt=salt, max_new_tokens=max(0, max_tokens)) as session:
            yield from _with_session(
                model, tokenizer, session, prefill_step_size, prompt_progress_callback, options
            )
        return
    bits = None if kv_bits is None else Bits(kv_bits, kv_group_size, quantized_kv_start)
    options |= {
        "draft_model": draft_model,
        "kv_bits": kv_bits,
        "kv_group_size": kv_group_size,
        "quantized_kv_start": quantized_kv_start,
        "logits_processors": logits_processors,
        "prefill_step_size": prefill_step_size,
        "prompt_progress_callback": prompt_progress_callback,
    }
    kinds = [cache] if draft_cache is None or draft_model is None else [cache, draft_cache]
    yield from _with_lanes(model, tokenizer, tokens, kinds, bits, salt, options)


def _with_session(
    model: Any,
    tokenizer: Any,
    session: Session,
    step: int,
    progress: Progress | None,
    options: dict[str, Any],
) -> Iterator[GenerationResponse]:
    prompt = session.tokens
    began = time.perf_counter()
    stream = options.get("stream", generation_stream)
    _prefill(model, session, step, stream, progress or (lambda done, total: None))
    # Room for a division: an instant is possible when everything was restored.
    rate = len(session.remaining_tokens) / max(time.perf_counter() - began, 1e-9)
    responses = upstream(
        model, tokenizer, mx.array(prompt[-1:]), prompt_cache=session.prompt_cache, **options
    )
    with closing(responses):
        try:
            for number, response in enumerate(responses):
                if number == 0:
                    # The prompt's last token, which mlx-lm's own loop has fed.
                    session.asked.computed(1, 0.0)
                session.append(response.token)
                yield replace(response, prompt_tokens=len(prompt), prompt_tps=rate)
        except GeneratorExit:
            session.commit()
            raise
    session.commit()


def _prefill(model: Any, session: Session, step: int, stream: Any, progress: Progress) -> None:
    """Feed the prompt's remaining tokens but the last, with checkpoints where they are needed."""
    rest = session.remaining_tokens
    last = len(rest) - 1
    done = 0
    progress(0, len(rest))
    with wired_limit(model, [stream]), mx.stream(stream):
        while done < last:
            count = min(session.next_stop(step), last - done)
            model(mx.array([rest[done : done + count]]), cache=session.prompt_cache)
            mx.eval([cache.state for cache in session.prompt_cache])
            done += count
            session.checkpoint(session.cached_tokens + done)
            progress(done, len(rest))
            mx.clear_cache()


def _with_lanes(
    model: Any,
    tokenizer: Any,
    tokens: list[int],
    kinds: Sequence[Scopes],
    bits: Bits | None,
    salt: str | bytes | None,
    options: dict[str, Any],
) -> Iterator[GenerationResponse]:
    """Serve caches that change their class on the way, or are two models': stored at the end."""
    lanes = {kind: lane_of(kinds, kind, salt) for kind in dict.fromkeys((bits, None))}
    asked = kinds[0].store.requests.ask(lanes[bits].view.namespace, len(tokens))
    restored = restored_from([*lanes.values()], as_tokens(tokens), asked, exact=True)
    cached = restored.point.position
    live = restored.prompt_cache if cached else lanes[None].fresh()
    # Speculative decoding shows its processors the last token of the prompt and what follows.
    unseen = tokens[:-1] if options["draft_model"] is not None else tokens[:cached]
    options["logits_processors"] = _seeing(unseen, options["logits_processors"])
    fed = list(tokens)

    def store(sequence: list[int]) -> None:
        kind = packed_as(live, 0 if bits is None else bits.start)
        if kind in lanes:
            lanes[kind].store(as_tokens(sequence), live, len(tokens))

    told = options.get("prompt_progress_callback")

    def progress(done: int, total: int) -> None:
        # The computing is measured, and not the storing.
        asked.end_chunk(cached + done)
        if told is not None:
            told(done, total)
        if bits is not None and done == total - 1:
            # Packed while the answer grows, the prompt's dense caches would be lost.
            store(tokens[: cached + done])
        asked.begin_chunk(cached + done)

    options["prompt_progress_callback"] = progress
    responses = upstream(model, tokenizer, mx.array(tokens[cached:]), prompt_cache=live, **options)
    asked.begin_chunk(cached)
    try:
        with closing(responses):
            for response in responses:
                asked.end_chunk()
                fed.append(response.token)
                yield replace(response, prompt_tokens=len(tokens))
    except GeneratorExit:
        # Closed by now, so that speculation has taken back the tokens that were not accepted.
        store(fed)
        raise
    finally:
        asked.ended(len(fed) - len(tokens))
    store(fed)


def _encode(tokenizer: Any, prompt: str | Sequence[int]) -> list[int]:
    if not isinstance(prompt, str):
        return [int(token) for token in prompt]
    wrapped = tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)
    special = wrapped.bos_token is None or not prompt.startswith(wrapped.bos_token)
    return list(wrapped.encode(prompt, add_special_tokens=special))


def _seeing(
    prefix: Sequence[int], processors: Sequence[LogitsProcessor] | None
) -> list[LogitsProcessor] | None:
    """Return processors that see `prefix` before mlx-lm's tokens."""
    if not processors or not len(prefix):
        return None if processors is None else list(processors)
    before = mx.array(list(prefix))

    def widened(processor: LogitsProcessor) -> LogitsProcessor:
        return lambda tokens, logits: processor(
            mx.concatenate([before, tokens.astype(before.dtype)]), logits
        )

    return [widened(processor) for processor in processors]
