"""OmlxPrefixCache: what oMLX's scheduler calls of its BlockAwarePrefixCache, on a shared store.

Written from its public source; `docs/omlx.md` says what was run.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omlx_cache import reasons
from omlx_cache.adapters.base import UnsupportedCache
from omlx_cache.integrations.mlx_lm.models import LoadedModel
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.omlx.keyed import ExtraRanges, keyed
from omlx_cache.integrations.omlx.states import Layer, caches_at, caches_of
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RestoredBlocks:
    """Stands for oMLX's BlockTable: a request's restored prefix, until its caches are taken."""

    request_id: str
    num_tokens: int
    block_ids: list[int] = field(default_factory=list)
    caches: list[Any] | None = None


class OmlxPrefixCache:
    """Serves the calls of oMLX's scheduler, on its thread and on the one that stores.

    A prefix is restored when it is fetched, to at most all tokens but the last, so that the
    scheduler's cases of exact hits do not come up. `block_size` is what its boundary snapshots are
    taken at; blocks are the store's. No method raises for what it is given.

    `_lock` guards `_cache`, which one thread at a time may call, and `_tables`.
    """

    def __init__(
        self, model: Any, store: BlockStore, *, model_name: str = "", block_size: int | None = None
    ) -> None:
        self.block_size = block_size or store.settings.block_size
        self._store, self._key = store, (model_name or "model", None, None)
        self._cache = TieredPromptCache(store, LoadedModel(self._key, model))
        self._tables: dict[str, RestoredBlocks] = {}
        self._lock = threading.Lock()

    def fetch_cache(
        self,
        request_id: str,
        tokens: list[int],
        extra_keys: tuple[Any, ...] | None = None,
        extra_key_token_start: int | None = None,
        extra_key_ranges: ExtraRanges | None = None,
    ) -> tuple[RestoredBlocks | None, list[int]]:
        """Restore a prefix, and return it with the tokens after it; `(None, tokens)` for a miss.
        Evaluates MLX and reads the disk."""
        asked = keyed(tokens, extra_keys, extra_key_token_start, extra_key_ranges)
        with self._lock:
            caches, rest = self._cache.fetch_nearest_cache(self._key, asked)
            if caches is None:
                return None, tokens
            held = len(tokens) - len(rest)
            # The scheduler logs how many there are, and asks nothing else of them.
            blocks = list(range(-(-held // self._store.settings.block_size)))
            table = self._tables[request_id] = RestoredBlocks(request_id, held, blocks, caches)
        return table, list(tokens[held:])

    def preload_blocks(self, block_table: RestoredBlocks) -> None:
        """Do nothing: a fetch has read them."""

    def reconstruct_cache(
        self, block_table: RestoredBlocks, *_: Any, **__: Any
    ) -> list[Any] | None:
        """Return the caches of a fetched prefix, once: they are the caller's own; then None."""
        caches, block_table.caches = block_table.caches, None
        return caches

    def store_cache(
        self,
        request_id: str,
        tokens: Sequence[int],
        cache_data: Sequence[Layer],
        model_cache_config: Any = None,
        boundary_snapshots: Mapping[int, Sequence[Layer | None]] | None = None,
        extra_keys: tuple[Any, ...] | None = None,
        extra_key_token_start: int | None = None,
        extra_key_ranges: ExtraRanges | None = None,
    ) -> RestoredBlocks | None:
        """Store a sequence as far as its caches hold it, and what cannot be cut at each boundary.
        Copies what it keeps; None where its caches are of classes that are not known."""
        stored = keyed(tokens, extra_keys, extra_key_token_start, extra_key_ranges)
        try:
            for position in sorted(boundary_snapshots or ()):
                if 0 < position < len(stored):
                    snapshot = (boundary_snapshots or {})[position]
                    self._insert(stored[:position], caches_at(position, cache_data, snapshot))
            self._insert(stored, caches_of(cache_data))
        except UnsupportedCache as error:
            self._store.counters.skip(reasons.UNSUPPORTED)
            _log.debug("not stored: %s", error)
            return None
        except Exception:
            self._store.counters.skip(reasons.ERROR)
            _log.exception("a sequence is not stored")
            return None
        return RestoredBlocks(request_id, len(stored))

    def _insert(self, tokens: list[int], caches: list[Any]) -> None:
        with self._lock:
            self._cache.insert_cache(self._key, tokens, caches)

    def release_cache(self, request_id: str) -> None:
        """Forget what was restored for a request; pages that are stored stay."""
        with self._lock:
            self._tables.pop(request_id, None)

    clear_request_entry = release_cache

    def get_block_table(self, request_id: str) -> RestoredBlocks | None:
        """Return what was restored for a request, while it is not released."""
        with self._lock:
            return self._tables.get(request_id)

    def clear(self) -> int:
        """Forget what was restored for requests, as after an error; pages that are stored stay."""
        with self._lock:
            count = len(self._tables)
            self._tables.clear()
        return count

    def get_stats(self) -> dict[str, Any]:
        """Return the store's figures, as `omlx-cache stats --json` has them."""
        return self._store.stats().to_dict()

    def set_cold_restore_callback(self, callback: object) -> None:
        """Do nothing: the store reads its own disk."""

    def set_paged_ssd_cache_manager(self, manager: object) -> None:
        """Do nothing: the store has its own disk tier."""


def install(scheduler: Any, store: BlockStore) -> OmlxPrefixCache:
    """Have a scheduler that has no request yet keep its prompts in `store`; returns what it calls.

    Its own managers of blocks and of the SSD are taken out: where it has none it asks none.
    """
    config = scheduler.config
    cache = OmlxPrefixCache(
        scheduler.model,
        store,
        model_name=str(getattr(config, "model_name", "") or ""),
        block_size=getattr(config, "paged_cache_block_size", None),
    )
    scheduler.block_aware_cache = cache
    scheduler.paged_cache_manager = scheduler.paged_ssd_cache_manager = None
    return cache
