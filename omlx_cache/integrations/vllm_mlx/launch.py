"""`omlx-cache run vllm-mlx`, with this cache in each scheduler that it makes; and `install`.

The rows of a batch are stored while the scheduler computes them. It stores a prompt itself after
its first token, for some kinds of cache only, and a sequence at its end. That is too late for a
client that disconnects, and gives a model with windows or recurrent state one restore point.
"""

import dataclasses
import functools
import logging
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.integrations.host_server import VLLM_GENERATOR, VLLM_SCHEDULER
from omlx_cache.integrations.host_server import VLLM_MLX as HOST
from omlx_cache.integrations.launching import OpenStore, put
from omlx_cache.integrations.mlx_lm.following import FollowedRows
from omlx_cache.integrations.rows import row_caches, segments_of
from omlx_cache.integrations.vllm_mlx.prefix_cache import MB, TieredPrefixCache
from omlx_cache.store import BlockStore
from omlx_cache_storage.calls import uninterrupted

_log = logging.getLogger(__name__)

SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/")
"""Where the hub's own cache has a model."""
BATCHING = "--continuous-batching"
HELP = ("-h", "--help")
SIMPLE = (
    f"vllm-mlx serve without {BATCHING} has one request at a time and keeps no prefixes that this "
    f"cache could serve: add {BATCHING}"
)
ROWS_NEEDED = ("_prompt_batch", "_generation_batch", "_unprocessed_sequences", "insert_segments")

Parts = Callable[[list[int]], Iterable[int]]
"""Says where the parts of a prompt's chat end."""


def place(open_store: OpenStore) -> None:
    """Have every scheduler that is made from now on use this cache, unless the server's prefix
    cache is switched off. A scheduler has no argument for another cache. Call it once."""
    _after_init(import_module("vllm_mlx.scheduler").Scheduler, open_store)
    try:
        kind = import_module("vllm_mlx.mllm_batch_generator").MLLMBatchGenerator
    except (ImportError, AttributeError) as error:
        _log.info("models with images keep their own cache: %s", error)
    else:
        _after_init(kind, open_store)


def main(arguments: Sequence[str]) -> None:
    """Run the server's own command; also raises SystemExit for a mode without batches."""
    flags = [argument.split("=")[0] for argument in arguments]
    if "serve" in flags[:1] and not {BATCHING, "--models-config", *HELP} & set(flags):
        raise SystemExit(SIMPLE)
    sys.argv = [HOST.name, *arguments]
    import_module("vllm_mlx.cli").main()


def _after_init(kind: Any, open_store: OpenStore) -> None:
    own = kind.__init__

    @functools.wraps(own)
    def init(self: Any, *args: Any, **options: Any) -> None:
        own(self, *args, **options)
        # A scheduler of text has the switch in its configuration; of images, a cache or none.
        config = getattr(self, "config", None)
        if getattr(config, "enable_prefix_cache", getattr(self, "prefix_cache", True) is not None):
            put(install, self, open_store)
        else:
            _log.warning("the server's prefix cache is switched off, and this one with it")

    kind.__init__ = init


@uninterrupted
def install(
    target: Any, store: BlockStore, *, model_id: str | None = None
) -> TieredPrefixCache | None:
    """Put the cache into vllm-mlx's `Scheduler`, its `MLLMScheduler` or that one's generator,
    before its first request, and return it.

    The cache that it has is dropped, and its SSD tier closed. `model_id` names the model; without
    it its tokenizer's path does. The server's `cache_memory_mb` and 8- or 4-bit
    `kv_cache_quantization` hold for this cache too. The store stays the caller's to close.

    None, and a line of the log, where this version cannot have the cache; with the setting
    `require` raises UnusableHost instead, and TypeError for another target.
    """
    kinds = {kind.__name__ for kind in type(target).__mro__}
    if "MLLMScheduler" in kinds:
        target._ensure_batch_generator()
        target = target.batch_generator
    elif "Scheduler" in kinds:
        return _into_scheduler(target, store, model_id)
    elif "MLLMBatchGenerator" not in kinds:
        raise TypeError(
            "install(scheduler, store) takes vllm_mlx's Scheduler or MLLMScheduler, not "
            f"{type(target).__name__}"
        )
    return _into_generator(target, store, model_id)


def _into_scheduler(
    scheduler: Any, store: BlockStore, model_id: str | None
) -> TieredPrefixCache | None:
    make_cache = functools.partial(_caches, weakref.ref(scheduler))
    if not HOST.takes(
        scheduler,
        VLLM_SCHEDULER,
        lambda: scheduler.model,
        require=store.settings.require,
        make_cache=make_cache,
    ):
        return None
    config, tokenizer = scheduler.config, scheduler.tokenizer
    name = _name(tokenizer) if model_id is None else model_id
    store.decoder = lambda tokens, model: tokenizer.decode(tokens) if model == name else None
    cache = TieredPrefixCache(
        scheduler.model,
        store,
        model_id=name,
        make_cache=make_cache,
        codec_policy=_policy(
            store,
            config.kv_cache_quantization,
            config.kv_cache_quantization_bits,
            config.kv_cache_min_quantize_tokens,
        ),
        max_bytes=_bytes(config.cache_memory_mb),
    )
    # The engine opens the tier again when it starts, unless its directory is not set.
    config = dataclasses.replace(config, ssd_cache_dir=None)
    if scheduler._ssd_tier is not None:
        scheduler.close_ssd_tier()
    scheduler._close_batch_generator()
    scheduler.config = config
    scheduler.prefix_cache = scheduler.block_aware_cache = scheduler.paged_cache_manager = None
    # A prompt is stored again once it has grown by more than this. Here that writes the new blocks
    # only.
    scheduler.SNAPSHOT_REFRESH_TOKENS = 0
    scheduler.memory_aware_cache = cache
    scheduler._current_sampler_params = None
    scheduler._create_batch_generator = _creating(scheduler, cache)
    return cache


def _creating(scheduler: Any, cache: TieredPrefixCache) -> Callable[..., Any]:
    """Return what makes a scheduler's generators, with rows that are stored while they are
    computed."""
    alive, make = weakref.ref(scheduler), type(scheduler)._create_batch_generator

    def create(*args: Any, **options: Any) -> Any:
        return follow_rows(make(alive(), *args, **options), cache, parts)

    def parts(prompt: list[int]) -> set[int]:
        # The engine's boundary of a chat: the tokens of all messages but the last.
        asked: Any = alive()
        known = asked.requests.values()
        return {one.prefix_boundary for one in known if one.prompt_token_ids == prompt} - {0}

    return create


def _caches(alive: Callable[[], Any]) -> list[Any]:
    scheduler = alive()
    caches, bound = make_prompt_cache(scheduler.model), scheduler._bounded_kv_size()
    return list(caches if bound is None else scheduler._bound_cache_layers(caches, bound))


def _into_generator(
    generator: Any, store: BlockStore, model_id: str | None
) -> TieredPrefixCache | None:
    alive = weakref.ref(generator)

    def make_cache() -> list[Any]:
        live: Any = alive()
        return list(make_prompt_cache(live.language_model, live.max_kv_size or None))

    if not HOST.takes(
        generator,
        VLLM_GENERATOR,
        lambda: generator.language_model,
        require=store.settings.require,
        make_cache=make_cache,
    ):
        return None
    own = getattr(generator.prefix_cache, "_config", None)
    generator.prefix_cache = cache = TieredPrefixCache(
        generator.language_model,
        store,
        model_id=_name(generator.processor) if model_id is None else model_id,
        make_cache=make_cache,
        codec_policy=own
        and _policy(store, own.kv_quantize, own.kv_bits, own.kv_min_quantize_tokens),
        max_bytes=_bytes(own and own.max_memory_mb),
    )
    return cache


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * MB


def _name(tokenizer: Any) -> str:
    """Return the path or hub id of a tokenizer or processor; "" without one."""
    for source in (tokenizer, getattr(tokenizer, "tokenizer", None)):
        name = getattr(source, "name_or_path", None)
        if isinstance(name, str) and name:
            of_the_hub = SNAPSHOT.search(name)
            return of_the_hub[1].replace("--", "/") if of_the_hub else name
    return ""


def _policy(store: BlockStore, wanted: bool, bits: int, least: int) -> CodecPolicy | None:
    """Return how pages are kept; None leaves it to the store."""
    if not wanted or store.settings.codec != "dense":
        return None
    if bits not in (4, 8):
        _log.warning("pages are kept in 4 or 8 bits or as they are, not in %d: as they are", bits)
        return None
    return CodecPolicy("affine8" if bits == 8 else "affine4", min_quantize_tokens=least)


def follow_rows(generator: Any, cache: TieredPrefixCache, parts: Parts) -> Any:
    """Return the generator, whose rows are stored from now on, unless it does not say where they
    are. Their pages are restored for single requests: so a model whose states take padding for
    tokens computes its prompts one after the other. Call it on the model's thread."""
    if not all(hasattr(generator, name) for name in ROWS_NEEDED):
        _log.warning("requests are stored when they end: an unknown kind of batch generator")
        return generator
    if not cache.heeds_padding:
        generator.prefill_batch_size = 1
    rows = _Rows(generator, cache, parts)
    generator.insert, generator.next, generator.remove = rows.insert, rows.next, rows.remove
    weakref.finalize(generator, rows.end).atexit = False
    return generator


class _Rows:
    """Follows each row from its insertion to its end, on the model's thread, which alone changes
    `_stops`, by uid. Does not keep the generator alive, which holds its caches."""

    def __init__(self, generator: Any, cache: TieredPrefixCache, parts: Parts) -> None:
        self._generator = weakref.ref(generator)
        self._kind: Any = type(generator)
        self._cache = cache
        self._parts = parts
        self._followed = FollowedRows(cache.follow)
        self._stops: dict[int, frozenset[int]] = {}

    def insert(
        self, prompts: Sequence[Sequence[int]], *, caches: Any = None, **options: Any
    ) -> list[int]:
        """Insert prompts, interrupted at their restore points, with the tokens of their caches."""
        generator: Any = self._generator()
        given = caches or [None] * len(prompts)
        held = [self._cache.held_by(one) for one in given]
        pairs = list(zip(held, map(list, prompts), strict=True))
        stops = [self._wanted(before, prompt) for before, prompt in pairs]
        uids: list[int]
        try:
            uids = self._kind.insert_segments(
                generator,
                [segments_of([*b, *p], len(b), s) for (b, p), s in zip(pairs, stops, strict=True)],
                caches=[row_caches(generator, one) for one in given],
                all_tokens=held,
                **options,
            )
        except TypeError:
            _log.exception("prompts are computed without restore points")
            return list(self._kind.insert(generator, prompts, caches=caches, **options))
        self._stops.update(zip(uids, map(frozenset, stops), strict=True))
        return uids

    def _wanted(self, held: list[int], prompt: list[int]) -> list[int]:
        start, whole = len(held), [*held, *prompt]
        try:
            stops = self._cache.stops(whole, start, self._parts(whole))
        except Exception:
            _log.exception("a prompt is computed without restore points")
            return []
        return [stop for stop in stops if start < stop < start + len(prompt)]

    def next(self) -> Any:
        generator = self._generator()
        prompts, generated = self._kind.next(generator)
        try:
            going = [response.uid for response in prompts if not response.end_of_prompt]
            going += [response.uid for response in generated if response.finish_reason is None]
            for uid in going:
                self._followed.store(generator, uid, self._stops.get(uid, ()))
            for response in generated:
                if response.finish_reason is not None:
                    self._forget(response.uid)
        except Exception:
            _log.exception("what a step computed is stored when its requests end")
        return prompts, generated

    def remove(self, uids: Sequence[int], *args: Any, **options: Any) -> Any:
        """Drop rows; the blocks that they had completed stay stored."""
        for uid in uids:
            self._forget(uid)
        return self._kind.remove(self._generator(), uids, *args, **options)

    def end(self) -> None:
        for uid in list(self._stops):
            self._forget(uid)

    def _forget(self, uid: int) -> None:
        self._stops.pop(uid, None)
        self._followed.end(uid)
