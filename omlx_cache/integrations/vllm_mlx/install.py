"""Putting the cache into a scheduler of vllm-mlx that exists already."""

import dataclasses
import logging
import re
import weakref
from collections.abc import Callable
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.codecs import CodecPolicy
from omlx_cache.integrations.vllm_mlx.batches import follow_rows
from omlx_cache.integrations.vllm_mlx.prefix_cache import TieredPrefixCache
from omlx_cache.integrations.vllm_mlx.tally import MB
from omlx_cache.store import BlockStore
from omlx_cache_storage.interrupts import uninterrupted

_log = logging.getLogger(__name__)

SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/")
"""Where the hub's own cache has a model."""


@uninterrupted
def install(target: Any, store: BlockStore, *, model_id: str | None = None) -> TieredPrefixCache:
    """Put the cache into a scheduler, before its first request, and return it.

    `target` is vllm-mlx's `Scheduler`, its `MLLMScheduler` or that one's generator. The cache
    that it has is dropped, and its SSD tier closed. `model_id` names the model; without it its
    tokenizer's path does. The server's `cache_memory_mb` and 8- or 4-bit `kv_cache_quantization`
    hold for this cache too. The store stays the caller's to close.

    Raises TypeError for a target that is neither.
    """
    if hasattr(target, "memory_aware_cache"):
        return _into_scheduler(target, store, model_id)
    if hasattr(target, "batch_generator") and hasattr(target, "mm_processor"):
        target._ensure_batch_generator()
        target = target.batch_generator
    if hasattr(target, "prefix_cache") and hasattr(target, "language_model"):
        return _into_generator(target, store, model_id)
    raise TypeError(
        "install(scheduler, store) takes vllm_mlx's Scheduler or MLLMScheduler, not "
        f"{type(target).__name__}"
    )


def _into_scheduler(scheduler: Any, store: BlockStore, model_id: str | None) -> TieredPrefixCache:
    config = scheduler.config
    if scheduler._ssd_tier is not None:
        scheduler.close_ssd_tier()
    # The engine opens the tier again when it starts, unless its directory is not set.
    scheduler.config = dataclasses.replace(config, ssd_cache_dir=None)
    scheduler.prefix_cache = scheduler.block_aware_cache = scheduler.paged_cache_manager = None
    # A prompt is stored again once it has grown by more than this. Here that writes what is new.
    scheduler.SNAPSHOT_REFRESH_TOKENS = 0
    cache = TieredPrefixCache(
        scheduler.model,
        store,
        model_id=_name(scheduler.tokenizer) if model_id is None else model_id,
        make_cache=_bounded(scheduler),
        codec_policy=_policy(
            store,
            config.kv_cache_quantization,
            config.kv_cache_quantization_bits,
            config.kv_cache_min_quantize_tokens,
        ),
        max_bytes=_bytes(config.cache_memory_mb),
    )
    scheduler.memory_aware_cache = cache
    _store_while_computing(scheduler, cache)
    return cache


def _store_while_computing(scheduler: Any, cache: TieredPrefixCache) -> None:
    """Have the scheduler's batches stored while they are computed: no argument reaches the place
    where it makes its generator."""
    alive, make = weakref.ref(scheduler), type(scheduler)._create_batch_generator

    def create(*args: Any, **options: Any) -> Any:
        return follow_rows(make(alive(), *args, **options), cache, parts)

    def parts(prompt: list[int]) -> set[int]:
        # What the engine says of a chat: the tokens of all messages but the last.
        asked: Any = alive()
        known = asked.requests.values()
        return {one.prefix_boundary for one in known if one.prompt_token_ids == prompt} - {0}

    scheduler._close_batch_generator()
    scheduler._current_sampler_params = None
    scheduler._create_batch_generator = create


def _bounded(scheduler: Any) -> Callable[[], list[Any]] | None:
    """Return what makes caches as the scheduler bounds them; None when it does not."""
    bound = scheduler._bounded_kv_size()
    if bound is None:
        return None
    model, bounded = weakref.ref(scheduler.model), type(scheduler)._bound_cache_layers
    return lambda: list(bounded(make_prompt_cache(model()), bound))


def _into_generator(generator: Any, store: BlockStore, model_id: str | None) -> TieredPrefixCache:
    model, bound = weakref.ref(generator.language_model), generator.max_kv_size or None
    own = getattr(generator.prefix_cache, "_config", None)
    cache = TieredPrefixCache(
        generator.language_model,
        store,
        model_id=_name(generator.processor) if model_id is None else model_id,
        make_cache=lambda: list(make_prompt_cache(model(), bound)),
        codec_policy=own
        and _policy(store, own.kv_quantize, own.kv_bits, own.kv_min_quantize_tokens),
        max_bytes=_bytes(own and own.max_memory_mb),
    )
    generator.prefix_cache = cache
    return cache


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * MB


def _name(tokenizer: Any) -> str:
    """Return the path or hub id that a tokenizer or processor was loaded from; "" without one."""
    for source in (tokenizer, getattr(tokenizer, "tokenizer", None)):
        name = getattr(source, "name_or_path", None)
        if isinstance(name, str) and name:
            of_the_hub = SNAPSHOT.search(name)
            return of_the_hub[1].replace("--", "/") if of_the_hub else name
    return ""


def _policy(store: BlockStore, wanted: bool, bits: int, least: int) -> CodecPolicy | None:
    """Return how pages are kept; None leaves it to the store, which has a codec or is not told."""
    if not wanted or store.settings.codec != "dense":
        return None
    if bits not in (4, 8):
        _log.warning("pages are kept in 4 or 8 bits or as they are, not in %d: as they are", bits)
        return None
    return CodecPolicy("affine8" if bits == 8 else "affine4", min_quantize_tokens=least)
