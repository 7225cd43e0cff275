"""Puts the cache into a handler or a batch scheduler of mlx-openai-server that exists already."""

from typing import Any

from omlx_cache.integrations.mlx_lm.models import LoadedModel
from omlx_cache.integrations.openai_server.prompt_cache import HandlerPromptCache
from omlx_cache.integrations.padding import heeds_padding
from omlx_cache.store import BlockStore


def install(target: Any, store: BlockStore, *, model_path: str = "") -> HandlerPromptCache:
    """Have an MLXLMHandler or a BatchScheduler keep its prompts in `store`; returns what it calls.

    Best before the first request: what its own cache holds is dropped. `model_path` names a
    scheduler's model for people. What a batch leaves is restored for requests alone, so prompts of
    a model whose states take a batch's padding for tokens are computed one after the other; looks
    at a model with recurrent state for that. Raises TypeError for anything else.
    """
    from app.core import BatchScheduler
    from app.handler.mlx_lm import MLXLMHandler

    if isinstance(target, MLXLMHandler):
        cache = _for_handler(target, store)
        own, target.prompt_cache = target.prompt_cache, cache
        scheduler = target._batch_scheduler
        if scheduler is not None:
            scheduler._prompt_cache = cache
        if not heeds_padding(target.model.model):
            target._batch_prefill_size = 1
            if scheduler is not None:
                _prefill_one_at_a_time(scheduler)
    elif isinstance(target, BatchScheduler):
        source = LoadedModel(model_path or "model", target._model, max_kv_size=target._max_kv_size)
        cache = HandlerPromptCache(store, source)
        own, target._prompt_cache = target._prompt_cache, cache
        if not heeds_padding(target._model):
            _prefill_one_at_a_time(target)
    else:
        raise TypeError(
            "install(target, store) takes mlx-openai-server's MLXLMHandler or BatchScheduler, not "
            f"{type(target).__name__}"
        )
    if own is not None:
        own.close()
    return cache


def _prefill_one_at_a_time(scheduler: Any) -> None:
    scheduler._prefill_batch_size = 1
    if scheduler._batch_generator is not None:
        scheduler._batch_generator.prefill_batch_size = 1


def _for_handler(handler: Any, store: BlockStore) -> HandlerPromptCache:
    """Return a cache for a handler's model and flags.

    A batch is dense whatever `--kv-bits` says, and as long as `batch_max_kv_size` allows; requests
    that are served alone are packed, and bounded by `--context-length`.
    """
    model = handler.model
    # Every request of a handler takes the same path: what decides it is fixed with its model.
    batched = handler._is_request_batchable(None)
    source = LoadedModel(
        (handler.model_path, None, None),
        model.model,
        model.draft_model,
        handler._batch_max_kv_size if batched else model.context_length,
    )
    return HandlerPromptCache(
        store,
        source,
        max_size=handler.prompt_cache.max_size,
        max_bytes=handler.prompt_cache.max_bytes,
        kv_bits=None if batched else handler.kv_bits,
        kv_group_size=handler.kv_group_size,
        quantized_kv_start=handler.quantized_kv_start,
    )
