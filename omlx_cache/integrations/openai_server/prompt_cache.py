"""HandlerPromptCache: what mlx-openai-server's handler and batch scheduler call for prompts, and
`install`, which puts it there."""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from omlx_cache.integrations.mlx_lm.lanes import QUANTIZED_KV_START
from omlx_cache.integrations.mlx_lm.models import LoadedModel, ModelSource
from omlx_cache.integrations.mlx_lm.prompt_cache import Fetched, TieredPromptCache
from omlx_cache.integrations.old_batches import batchable
from omlx_cache.integrations.openai_server.host import HANDLER, HOST, SCHEDULER
from omlx_cache.integrations.padding import heeds_padding
from omlx_cache.mlx_lm_versions import is_old
from omlx_cache.settings.sizes import format_size
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)

UNBOUNDED = 1 << 62
"""From here on the server takes a byte budget for none."""
FLUSH_SECONDS = 8.0
"""The server gives a handler's process ten seconds to end."""
BATCHED = "batch"


class HandlerPromptCache:
    """Stands in for mlx-openai-server's LRUPromptCache; one model, `source`, in a shared store.

    The server calls from the thread of its scheduler, of its worker and of its event loop, all but
    the figures one at a time: what a fetch returns is evaluated and private, so that any of them
    may use it, and `allowed_sources` need not keep them apart. `max_size` is kept for the server to
    read, `max_bytes` is memory; the store's budgets come first. `fetch_nearest_cache` and
    `insert_cache` never raise.

    `_lock` guards `_cache`, which one thread at a time may call.
    """

    def __init__(
        self,
        store: BlockStore,
        source: ModelSource,
        *,
        max_size: int = 10,
        max_bytes: int = 1 << 63,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        quantized_kv_start: int = QUANTIZED_KV_START,
        salt: str | bytes | None = None,
    ) -> None:
        self.max_size, self.max_bytes = max_size, max_bytes
        self._store, self._key = store, source.model_key
        self._lock = threading.Lock()
        self._cache = TieredPromptCache(
            store,
            source,
            max_bytes=max_bytes if max_bytes < UNBOUNDED else None,
            kv_bits=kv_bits,
            kv_group_size=kv_group_size,
            quantized_kv_start=quantized_kv_start,
            salt=salt,
        )

    @property
    def last(self) -> Fetched | None:
        """What the latest fetch found; None before the first."""
        return self._cache.last

    def fetch_nearest_cache(
        self, tokens_ids: list[int], *, allowed_sources: Collection[str] | None = None
    ) -> tuple[list[Any] | None, list[int]]:
        """Return a private prompt cache with a prefix of `tokens_ids`, and the tokens after it, one
        at least. Evaluates MLX and reads the disk.

        `(None, tokens_ids)` for a miss; for a batch of an mlx-lm that computes rows wrong that
        join it, empty caches that it computes right.
        """
        with self._lock:
            caches, rest = self._cache.fetch_nearest_cache(self._key, tokens_ids)
            if allowed_sources is None or BATCHED not in allowed_sources:
                return caches, rest
            if caches is None or not all(hasattr(cache, "merge") for cache in caches):
                # Packed by a run without batches, perhaps: a batch takes dense caches only.
                caches, rest = None, tokens_ids
            if not is_old():
                return caches, rest
            return batchable(caches or self._cache.fresh(self._key)) or None, rest

    def insert_cache(
        self,
        tokens_ids: Sequence[int],
        prompt_cache: Sequence[Any],
        *,
        cache_type: str = "assistant",
        source: str = "nonbatch",
    ) -> None:
        """Store the caches of a sequence, as far as they hold its tokens; copies what it keeps."""
        with self._lock:
            self._cache.insert_cache(self._key, tokens_ids, prompt_cache, cache_type=cache_type)

    def trim_to(self, *, n_sequences: int | None = None, n_bytes: int | None = None) -> None:
        """Evict from memory down to `n_bytes`, and make all but `n_sequences` the first to go; what
        the disk has stays."""
        with self._lock:
            self._cache.trim_to(n_sequences=n_sequences, n_bytes=n_bytes)

    def clear(self) -> None:
        """Empty the memory; what the disk has stays, for `omlx-cache rm`."""
        self.trim_to(n_sequences=0, n_bytes=0)

    def close(self) -> None:
        """Write what is pending; the store stays open for the other models of the process."""
        if not self._store.flush(FLUSH_SECONDS):
            _log.warning("not everything was written in %g seconds", FLUSH_SECONDS)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the hot tier holds, of every model."""
        return self._cache.nbytes

    def __len__(self) -> int:
        """Sequences that were inserted through this object and are still in a tier."""
        with self._lock:
            return len(self._cache)

    def stats_by_type(self) -> dict[str, dict[str, int]]:
        """Return `{"n_sequences", "n_bytes"}` by the type that sequences were inserted with."""
        with self._lock:
            return self._cache.stats_by_type()

    def log_cache_stats(self) -> None:
        """Log how much memory and disk is in use; waits for nobody."""
        stats = self._store.stats()
        disk = "none" if stats.cold is None else format_size(stats.cold.nbytes)
        _log.info("prompt cache: memory %s, disk %s", format_size(stats.hot.nbytes), disk)


def install(target: Any, store: BlockStore, *, model_path: str = "") -> HandlerPromptCache | None:
    """Have an MLXLMHandler or a BatchScheduler keep its prompts in `store`; returns what it calls.

    Best before the first request: what its own cache holds is dropped. `model_path` names a
    scheduler's model for people. What a batch leaves is restored for requests alone, so prompts of
    a model whose states take a batch's padding for tokens are computed one after the other; looks
    at a model with recurrent state for that. None, and a line of the log, where this version of the
    server cannot have the cache: it keeps its own. Raises UnusableHost instead with the setting
    `require`, and TypeError for anything else.
    """
    model: Callable[[], Any]
    kinds = {kind.__name__ for kind in type(target).__mro__}
    if "MLXLMHandler" in kinds:
        names, model = HANDLER, lambda: target.model.model
    elif "BatchScheduler" in kinds:
        names, model = SCHEDULER, lambda: target._model
    else:
        raise TypeError(
            "install(target, store) takes mlx-openai-server's MLXLMHandler or BatchScheduler, not "
            f"{type(target).__name__}"
        )
    if not HOST.takes(target, names, model, require=store.settings.require):
        return None
    alone = not heeds_padding(model())
    if names is HANDLER:
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
