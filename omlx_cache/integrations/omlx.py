"""oMLX with this cache: its scheduler's calls of a block-aware prefix cache, on a store.

Written from its public source; `docs/servers.md` says which tests were run.
"""

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from omlx_cache import reasons
from omlx_cache.adapters.base import UnsupportedCache
from omlx_cache.identity.namespace import NOWHERE
from omlx_cache.integrations.host_server import HostServer, names_of
from omlx_cache.integrations.lanes import stand_in
from omlx_cache.integrations.mlx_lm.models import LoadedModel
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.requests.log import AskedRequest
from omlx_cache.store import BlockStore

__all__ = ["OmlxPrefixCache", "RestoredBlocks", "install"]

_log = logging.getLogger(__name__)

HOST = HostServer("omlx", "omlx", "==0.6.2")
NEEDED = names_of(
    "omlx.scheduler",
    "Scheduler",
    "config model block_aware_cache paged_cache_manager paged_ssd_cache_manager",
)

STORE_SECONDS = 1.0
"""How long a fetch waits for a store on another thread, before it is a miss."""

MOST_UNDER_WAY = 1024
"""A request without an end is ended when so many newer ones have been fetched."""

ExtraRanges = Sequence[tuple[int, tuple[Any, ...]]]
Layer = Mapping[str, Any]
"""`{"state": ..., "meta_state": ..., "class_name": ...}`: mlx-lm's `state`, and the `meta_state` of
the mlx-lm that oMLX is written for."""


@dataclass(slots=True)
class RestoredBlocks:
    """Stands for oMLX's BlockTable. There are as many ids as oMLX would have blocks; they name
    nothing."""

    request_id: str
    num_tokens: int
    block_ids: list[int] = field(default_factory=list)
    caches: list[Any] | None = None


STATISTICS = (
    *("hits", "misses", "tokens_saved", "tokens_matched_total", "tokens_requested_total"),
    *("partial_block_skips", "partial_tokens_skipped"),
    *("last_partial_tokens_skipped", "last_tokens_to_next_block"),
    *("exact_prefix_hits", "exact_prefix_misses", "exact_prefix_tokens_restored"),
    *("exact_prefix_stores", "exact_prefix_store_failures"),
)
"""Counts under oMLX's names. Those of parts that this cache lacks, partial blocks and
SpecPrefill's prefixes, stay 0."""


class OmlxPrefixCache:
    """Serves the calls of oMLX's scheduler, on its thread and on the one that stores.

    A prefix is restored when it is fetched, to at most all tokens but the last. So the scheduler's
    cases of exact hits do not arise. Its boundary snapshots are taken at multiples of `block_size`;
    blocks are the store's. A request ends when it is cleared or released; of its answer the tokens
    that are stored count. No method raises for its arguments.

    `_lock` guards `_cache`, which one thread at a time may call. The scheduler's thread alone
    changes `_counts`; each change of `_under_way` and `_answered` is one operation of a dict.
    """

    def __init__(
        self, model: Any, store: BlockStore, *, model_name: str = "", block_size: int | None = None
    ) -> None:
        self.block_size = block_size or store.settings.block_size
        self._store, self._key = store, (model_name or "model", None, None)
        self._cache = TieredPromptCache(store, LoadedModel(self._key, model))
        self._cache.insert_ends_request = False
        self._under_way: dict[str, AskedRequest] = {}
        self._answered: dict[str, int] = {}
        self._counts = Counter[str]()
        self._lock = threading.Lock()

    def fetch_cache(
        self,
        request_id: str,
        tokens: list[int],
        extra_keys: tuple[Any, ...] | None = None,
        extra_key_token_start: int | None = None,
        extra_key_ranges: ExtraRanges | None = None,
    ) -> tuple[RestoredBlocks | None, list[int]]:
        """Restore a prefix, and return it with the tokens after it. Evaluates MLX and reads the
        disk."""
        began = time.perf_counter()
        prompt = keyed(tokens, extra_keys, extra_key_token_start, extra_key_ranges)
        caches, rest = None, prompt
        if self._lock.acquire(timeout=STORE_SECONDS):
            try:
                caches, rest = self._cache.fetch_nearest_cache(self._key, prompt)
                asked = self._cache.last
            finally:
                self._lock.release()
        else:
            asked = self._store.requests.ask(NOWHERE, len(prompt))
            asked.restored(0, 0, time.perf_counter() - began, reasons.NOT_STORED)
        if asked is not None:
            self._under_way[request_id] = asked
            for forgotten in list(self._under_way)[:-MOST_UNDER_WAY]:
                self.release_cache(forgotten)
        held = 0 if caches is None else len(tokens) - len(rest)
        self._counts["hits" if held else "misses"] += 1
        self._counts.update(tokens_saved=held, tokens_matched_total=held)
        self._counts["tokens_requested_total"] += len(tokens)
        if not held:
            return None, tokens
        blocks = list(range(-(-held // self.block_size)))
        return RestoredBlocks(request_id, held, blocks, caches), list(tokens[held:])

    def preload_blocks(self, block_table: RestoredBlocks) -> int:
        """Return 0: a fetch has read them."""
        return 0

    def reconstruct_cache(
        self, block_table: RestoredBlocks, promote_to_hot_cache: bool = True
    ) -> list[Any] | None:
        """Return the caches of a fetched prefix, which are the caller's own, once; then None.
        Without `promote_to_hot_cache`, memory evicts the model's pages that the disk has."""
        caches, block_table.caches = block_table.caches, None
        if not promote_to_hot_cache:
            self._leave_memory()
        return caches

    def restore_exact_prefix(
        self, request_id: str, tokens: Sequence[int], *, promote_to_hot_cache: bool = True
    ) -> list[Any] | None:
        """Return None: SpecPrefill's prefixes are not kept."""
        self._counts["exact_prefix_misses"] += 1
        return None

    def store_exact_prefix(
        self,
        request_id: str,
        tokens: Sequence[int],
        cache_data: Sequence[Layer],
        model_cache_config: Any = None,
    ) -> RestoredBlocks | None:
        """Store nothing, and return None: it failed."""
        return None

    def store_cache(
        self,
        request_id: str,
        tokens: Sequence[int],
        cache_data: Sequence[Layer],
        model_cache_config: Any = None,
        boundary_snapshots: Any = None,
        extra_keys: tuple[Any, ...] | None = None,
        extra_key_token_start: int | None = None,
        extra_key_ranges: ExtraRanges | None = None,
        hot_cache_write_back: bool = True,
    ) -> RestoredBlocks | None:
        """Store a sequence as far as its caches hold it, and at each boundary the layers that
        cannot be cut. `boundary_snapshots` has layers by the number of tokens that they hold, None
        where they cannot be read back, and cannot be iterated. Copies the new blocks; None where
        its caches are of unknown classes. Without `hot_cache_write_back`, memory evicts the model's
        pages that the disk has."""
        stored = keyed(tokens, extra_keys, extra_key_token_start, extra_key_ranges)
        asked = self._under_way.get(request_id)
        if asked is not None:
            self._answered[request_id] = max(0, len(stored) - asked.record.prompt_tokens)
        try:
            # oMLX's object of snapshots answers `in`; its own disk may have lost the snapshot.
            for at in range(self.block_size, len(stored), self.block_size):
                snapshot = None
                if boundary_snapshots and at in boundary_snapshots:
                    snapshot = boundary_snapshots[at]
                if snapshot:
                    self._insert(stored[:at], caches_at(at, cache_data, snapshot))
            self._insert(stored, caches_at(len(stored), cache_data))
        except UnsupportedCache as error:
            self._store.counters.skip(reasons.UNSUPPORTED)
            _log.debug("not stored: %s", error)
            return None
        except Exception:
            self._store.counters.skip(reasons.ERROR)
            _log.exception("a sequence is not stored")
            return None
        finally:
            if not hot_cache_write_back:
                self._leave_memory()
        return RestoredBlocks(request_id, len(stored))

    def _insert(self, tokens: list[int], caches: list[Any]) -> None:
        with self._lock:
            self._cache.insert_cache(self._key, tokens, caches)

    def _leave_memory(self) -> None:
        """Evict from memory the clean pages; none while another thread stores."""
        if self._store.cold_dir is None or not self._lock.acquire(blocking=False):
            return
        try:
            self._cache.clear(self._key)
        except Exception:
            _log.exception("pages stay in memory")
        finally:
            self._lock.release()

    def release_cache(self, request_id: str) -> None:
        asked = self._under_way.pop(request_id, None)
        if asked is not None:
            asked.ended(self._answered.pop(request_id, 0))

    clear_request_entry = release_cache

    def clear(self) -> int:
        """End all requests, as after an error, and count anew; stored pages stay."""
        ended = list(self._under_way)
        for request_id in ended:
            self.release_cache(request_id)
        self._counts.clear()
        return len(ended)

    def get_stats(self) -> SimpleNamespace:
        """Return the counts that oMLX shows, of this model since `clear`; evictions are those of
        the store's memory."""
        return SimpleNamespace(**self._figures())

    def get_stats_dict(self) -> dict[str, Any]:
        """Return the same counts under the names that oMLX's panel reads."""
        return {**self._figures(), "active_requests": len(self._under_way)}

    def _figures(self) -> dict[str, Any]:
        queries = self._counts["hits"] + self._counts["misses"]
        return {
            **{name: self._counts[name] for name in STATISTICS},
            "block_size": self.block_size,
            "evictions": self._store.hot_usage().evicted_pages,
            "total_queries": queries,
            "hit_rate": self._counts["hits"] / queries if queries else 0.0,
        }


def install(scheduler: Any, store: BlockStore) -> OmlxPrefixCache | None:
    """Have a scheduler that has no request yet keep its prompts in `store`; returns the cache that
    it calls. Its own managers of blocks and of the SSD are taken out, the latter closed.

    None, and a line of the log, where this version cannot have the cache; with the setting
    `require` raises UnusableHost instead.
    """
    if not HOST.takes(scheduler, NEEDED, lambda: scheduler.model, require=store.settings.require):
        return None
    config = scheduler.config
    cache = OmlxPrefixCache(
        scheduler.model,
        store,
        model_name=str(getattr(config, "model_name", "") or ""),
        block_size=getattr(config, "paged_cache_block_size", None),
    )
    own = scheduler.paged_ssd_cache_manager
    scheduler.block_aware_cache = cache
    scheduler.paged_cache_manager = scheduler.paged_ssd_cache_manager = None
    if own is not None:
        # Its writer's thread would keep it, and its memory, for the life of the process.
        own.close()
    return cache


def keyed(
    tokens: Sequence[int],
    extra_keys: tuple[Any, ...] | None = None,
    start: int | None = None,
    ranges: ExtraRanges | None = None,
) -> list[int]:
    """Return tokens in which a negative id, made from the token and the keys, replaces the token
    where extra keys begin to count: earlier tokens are shared, later ones are not."""
    named = list(tokens)
    begins = list(ranges) if ranges else [(start or 0, extra_keys)] if extra_keys else []
    for at, keys in begins:
        place = min(max(at, 0), len(named) - 1)
        if place >= 0:
            digest = hashlib.sha256(repr((named[place], keys)).encode()).digest()
            named[place] = stand_in(digest)
    return named


def caches_at(
    position: int, layers: Sequence[Layer], snapshot: Sequence[Layer | None] | None = None
) -> list[Any]:
    """Return the caches of a sequence's first `position` tokens, which share the layers' arrays: a
    snapshot's layers, and the beginning of layers that it lacks because they can be cut. Keys and
    values may be longer: beside states of a boundary oMLX hands over all that it has. Raises
    UnsupportedCache for other classes, and for missing layers that cannot be cut."""
    taken = layers if snapshot is None else snapshot
    filled = [*taken, *[None] * (len(layers) - len(taken))]
    return [_cache(layer, own, position) for layer, own in zip(filled, layers, strict=True)]


def _cache(layer: Layer | None, whole: Layer, position: int) -> Any:
    if layer is None or not len(layer.get("state") or ()):
        if whole["class_name"] != "KVCache":
            raise UnsupportedCache(f"a snapshot without its {whole['class_name']}")
        layer = whole
    kind = str(layer["class_name"])
    if kind not in _MAKERS or not len(layer["state"] or ()):
        raise UnsupportedCache(f"oMLX's state of {kind}")
    return _MAKERS[kind](layer, position)


def _kv(layer: Layer, position: int) -> KVCache:
    cache = KVCache()
    cache.keys, cache.values = (side[..., :position, :] for side in layer["state"][:2])
    cache.offset = cache.keys.shape[2]
    return cache


def _rotating(layer: Layer, position: int) -> RotatingKVCache:
    keep, max_size, offset, index = (int(part) for part in layer["meta_state"])
    cache = RotatingKVCache(max_size, keep)
    cache.keys, cache.values = layer["state"][:2]
    cache.offset, cache._idx = offset, index
    return cache


def _arrays(layer: Layer, position: int) -> ArraysCache:
    cache = ArraysCache(len(layer["state"]))
    cache.cache = list(layer["state"])
    return cache


_MAKERS: Mapping[str, Callable[[Layer, int], Any]] = {
    "KVCache": _kv,
    "RotatingKVCache": _rotating,
    "ArraysCache": _arrays,
}
