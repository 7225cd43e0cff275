"""HandlerPromptCache, which mlx-openai-server's handler and batch scheduler call; and `install`."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from omlx_cache.integrations.host_server import OPENAI_HANDLER, OPENAI_SCHEDULER, OPENAI_SERVER
from omlx_cache.integrations.mlx_lm.models import LoadedModel, ModelSource
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.rows import batchable, heeds_padding
from omlx_cache.mlx_lm_versions import is_old
from omlx_cache.settings.sizes import format_size
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)

UNBOUNDED = 1 << 62
"""From here on the server takes a byte budget for none."""
FLUSH_SECONDS = 8.0
"""The server gives a handler's process ten seconds to end."""
BATCHED = "batch"


class HandlerPromptCache(TieredPromptCache):
    """Stands in for mlx-openai-server's LRUPromptCache; one model, `source`, in a shared store.

    The server calls from the threads of its scheduler, its worker and its event loop. The caches of
    a fetch are evaluated and private, so that any thread may use them. The server reads `max_size`;
    `max_bytes` is memory, and the store's budgets come first. `fetch_nearest_cache` and
    `insert_cache` never raise. `_lock` guards everything mutable.
    """

    def __init__(
        self,
        store: BlockStore,
        source: ModelSource,
        *,
        max_size: int = 10,
        max_bytes: int = 1 << 63,
        **options: Any,
    ) -> None:
        self.max_size, self.max_bytes = max_size, max_bytes
        self._key = source.model_key
        limit = max_bytes if max_bytes < UNBOUNDED else None
        super().__init__(store, source, max_bytes=limit, **options)

    def fetch_nearest_cache(  # type: ignore[override]
        self, tokens_ids: list[int], *, allowed_sources: Collection[str] | None = None
    ) -> tuple[list[Any] | None, list[int]]:
        """As for TieredPromptCache; but a miss of a batch gets empty caches that are computed right
        where mlx-lm's own are not."""
        with self._lock:
            caches, rest = super().fetch_nearest_cache(self._key, tokens_ids)
            if allowed_sources is None or BATCHED not in allowed_sources:
                return caches, rest
            if caches is None or not all(hasattr(cache, "merge") for cache in caches):
                # Packed by a run without batches, perhaps: a batch takes dense caches only.
                caches, rest = None, tokens_ids
            if not is_old():
                return caches, rest
            return batchable(caches or self.fresh(self._key)) or None, rest

    def insert_cache(  # type: ignore[override]
        self,
        tokens_ids: Sequence[int],
        prompt_cache: Sequence[Any],
        *,
        cache_type: str = "assistant",
        source: str = "nonbatch",
    ) -> None:
        super().insert_cache(self._key, tokens_ids, prompt_cache, cache_type=cache_type)

    def clear(self) -> None:  # type: ignore[override]
        """Empty the memory; pages on the disk stay."""
        self.trim_to(n_sequences=0, n_bytes=0)

    def close(self) -> None:
        """Write the pending pages; the store stays open for the other models of the process."""
        if not self._store.flush(FLUSH_SECONDS):
            _log.warning("not everything was written in %g seconds", FLUSH_SECONDS)

    def log_cache_stats(self) -> None:
        stats = self._store.stats()
        disk = "none" if stats.cold is None else format_size(stats.cold.nbytes)
        _log.info("prompt cache: memory %s, disk %s", format_size(stats.hot.nbytes), disk)


def install(target: Any, store: BlockStore, *, model_path: str = "") -> HandlerPromptCache | None:
    """Have an MLXLMHandler or a BatchScheduler keep its prompts in `store`; returns the cache that
    it calls.

    Call it before the first request: the target's own cache loses its prompts. `model_path` names a
    scheduler's model for people. The pages of a batch are restored for single requests. So a model
    whose states take a batch's padding for tokens computes its prompts one after the other; the
    call computes a few tokens of a model with recurrent state to find out.

    None, and a line of the log, where this version cannot have the cache; with the setting
    `require` raises UnusableHost instead, and TypeError for another target.
    """
    model: Callable[[], Any]
    kinds = {kind.__name__ for kind in type(target).__mro__}
    if "MLXLMHandler" in kinds:
        names, model = OPENAI_HANDLER, lambda: target.model.model
    elif "BatchScheduler" in kinds:
        names, model = OPENAI_SCHEDULER, lambda: target._model
    else:
        raise TypeError(
            "install(target, store) takes mlx-openai-server's MLXLMHandler or BatchScheduler, not "
            f"{type(target).__name__}"
        )
    if not OPENAI_SERVER.takes(target, names, model, require=store.settings.require):
        return None
    alone = not heeds_padding(model())
    if names is OPENAI_HANDLER:
        cache, scheduler = _for_handler(target, store), target._batch_scheduler
        own, target.prompt_cache = target.prompt_cache, cache
        target._batch_prefill_size = 1 if alone else target._batch_prefill_size
    else:
        source = LoadedModel(model_path or "model", model(), max_kv_size=target._max_kv_size)
        cache, scheduler = HandlerPromptCache(store, source), target
        own = target._prompt_cache
    if scheduler is not None:
        scheduler._prompt_cache = cache
        if alone:
            scheduler._prefill_batch_size = 1
            if scheduler._batch_generator is not None:
                scheduler._batch_generator.prefill_batch_size = 1
    if own is not None:
        own.close()
    return cache


def _for_handler(handler: Any, store: BlockStore) -> HandlerPromptCache:
    """A batch is dense whatever `--kv-bits` says, and as long as `batch_max_kv_size` allows;
    requests that are served alone are packed, and bounded by `--context-length`."""
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
