"""TieredPrefixCache: what vllm-mlx's schedulers call, kept in a store's tiers."""

import copy
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx

from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.integrations.lanes import digest_of
from omlx_cache.integrations.mlx_lm.following import Following
from omlx_cache.integrations.mlx_lm.models import LoadedModel
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.rows import heeds_padding
from omlx_cache.kv.buffers import shared
from omlx_cache.store import BlockStore
from omlx_cache_storage.calls import uninterrupted

_log = logging.getLogger(__name__)

MB = 1 << 20
BESIDES = 16
"""Prompts whose last logits are remembered; each is as long as the vocabulary."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Caches that hold exactly these tokens and see no later write of their giver."""

    tokens: tuple[int, ...]
    cache: list[Any]
    auxiliary: Mapping[str, Any] | None

    @property
    def memory_bytes(self) -> int:
        """Bytes that the caches keep alive until they are published."""
        return sum(cache.nbytes for cache in self.cache)


class TieredPrefixCache:
    """Stands in for vllm-mlx's MemoryAwarePrefixCache: the same calls, the same answers but these.

    A lookup leaves at least one token over, so no "exact" hit has to be thrown away. Only a prompt
    with an auxiliary (`prepare_store(auxiliary=)`) is restored whole. The returned caches are the
    caller's own. Any prefix of a stored sequence is found, as far as its caches allow; entries
    replace nothing, and share their pages. `remove` deletes no pages; the store has its own SSD.

    Models share the store's budgets. `make_cache` makes empty caches as the server does. `fetch`
    and `store` belong on the thread that runs the model, which is not asked before; any thread may
    call the other methods. No method raises for failures of the cache.

    `_lock` guards `_tally` (lookups and stores since the last reset, and the store's count of
    evicted pages by then), `_besides`, `_given` and the prompt cache.
    """

    def __init__(
        self,
        model: Any,
        store: BlockStore,
        *,
        model_id: str = "",
        make_cache: Callable[[], list[Any]] | None = None,
        codec_policy: CodecPolicy | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._store = store
        self._key = (model_id, None, None)
        self._source = LoadedModel(
            self._key, model, make_cache=make_cache, codec_policy=codec_policy
        )
        self._prompts = TieredPromptCache(store, self._source, max_bytes=max_bytes)
        self._most = max_bytes
        self._lock = threading.RLock()
        self._besides: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        self._tally = Counter[str]()
        self._given: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
        self._last_match_type: str | None = None
        self._last_matched_key: tuple[int, ...] | None = None

    # Calls of the scheduler to look up.

    def fetch(self, tokens: Sequence[int]) -> tuple[list[Any] | None, list[int]]:
        """Return private caches that hold a prefix of the tokens, and the tokens after it;
        `(None, tokens)` for a miss. Evaluates MLX and reads the disk."""
        prompt = list(tokens)
        with self._lock:
            whole = digest_of(prompt) in self._besides
            asked = [*prompt, 0] if whole else prompt
            caches, rest = self._prompts.fetch_nearest_cache(self._key, asked)
            if whole:
                # A caller with an auxiliary uses both or none, whatever tokens are left over.
                caches, rest = (caches, []) if len(rest) == 1 else (None, prompt)
            position = len(prompt) - len(rest)
            self._tally["hits"] += position > 0
            self._tally["misses"] += position == 0
            self._tally["tokens_saved"] += position
            self._last_match_type = ("prefix" if rest else "exact") if position else "miss"
            self._last_matched_key = tuple(prompt[:position]) if position else None
            if caches:
                self._given[caches[0]] = prompt[:position]
            return caches, rest

    def fetch_exact_auxiliary(self, tokens: Sequence[int]) -> dict[str, Any] | None:
        """Return the auxiliary of exactly these tokens; None once their caches are evicted."""
        key = digest_of(tokens)
        with self._lock:
            kept = self._besides.pop(key, None)
            if kept is None or tokens not in self:
                return None
            self._besides[key] = kept
            return dict(kept)

    def clone_for_replay(self, cache: Sequence[Any]) -> list[Any] | None:
        """Return caches that may be computed on while the given ones stay as they are."""
        try:
            return [_twin(one) for one in cache]
        except Exception:
            _log.exception("a cache cannot be copied")
            return None

    # Storing while a sequence is computed.

    @cached_property
    def heeds_padding(self) -> bool:
        """As `rows.heeds_padding`; the first call computes a few tokens, on the model's thread."""
        return heeds_padding(self._source.model)

    def held_by(self, cache: Sequence[Any] | None) -> list[int]:
        """Return the tokens that caches of `fetch` hold; [] for others, which are empty."""
        with self._lock:
            return list(self._given.get(cache[0], ())) if cache else []

    def stops(self, tokens: Sequence[int], start: int, parts: Iterable[int] = ()) -> list[int]:
        """As for TieredPromptCache, the ends of a chat's parts among them."""
        with self._lock:
            stops = self._prompts.stops(self._key, tokens, start)
        return sorted({*stops, *parts}) if stops else []

    def follow(self, tokens: Sequence[int]) -> Following | None:
        """Return what stores a sequence while it grows; None for an unknown kind of cache."""
        with self._lock:
            return next(iter(self._prompts.followers(self._key, tokens, 0)), None)

    # Calls of the scheduler to store.

    def store(
        self, tokens: Sequence[int], cache: Sequence[Any], evict_prefixes: bool = True
    ) -> bool:
        """Store the caches of a sequence; True when a later request can use some of it."""
        if not tokens or not cache:
            return False
        with self._lock:
            self._prompts.insert_cache(self._key, tokens, cache)
            stored = self._prompts.restorable(self._key, tokens) > 0
            self._tally["rejected"] += not stored
            return stored

    def prepare_store(
        self,
        tokens: Sequence[int],
        cache: Sequence[Any],
        auxiliary: dict[str, Any] | None = None,
    ) -> Prepared | None:
        """Return an entry of caches as they are now, which `commit_prepared` publishes."""
        if not tokens or not cache:
            return None
        twins = self.clone_for_replay(cache)
        return None if twins is None else Prepared(tuple(tokens), twins, auxiliary)

    def commit_prepared(
        self,
        entry: Prepared,
        evict_prefixes: bool = True,
        *,
        commit_lock: AbstractContextManager[Any] | None = None,
        commit_guard: Callable[[], bool] | None = None,
    ) -> bool:
        """Publish an entry, unless the guard says no; `commit_lock` is held while it is asked."""
        with self._lock, commit_lock or nullcontext():
            if commit_guard is not None and not commit_guard():
                return False
            stored = self.store(entry.tokens, entry.cache)
            if stored and entry.auxiliary:
                copies = shared(dict(entry.auxiliary))
                mx.eval([value for value in copies.values() if isinstance(value, mx.array)])
                self._besides[digest_of(entry.tokens)] = copies
                while len(self._besides) > BESIDES:
                    self._besides.popitem(last=False)
            return stored

    def remove(self, tokens: Sequence[int], *, include_ssd: bool = False) -> bool:
        """Forget a prompt's auxiliary; True when a request could have used the prompt. Its pages
        are evicted when the store needs the room."""
        with self._lock:
            self._besides.pop(digest_of(tokens), None)
            return tokens in self

    def clear(self) -> None:
        """Evict the model's pages from memory, as TieredPromptCache does, and reset the counts."""
        with self._lock:
            self._besides.clear()
            try:
                self._prompts.clear(self._key)
            except Exception:
                _log.exception("the prefix cache is not cleared")
            self.reset_stats()

    # Between processes: the store is on the disk all the time.

    def save_to_disk(self, cache_dir: str) -> bool:
        """Write the pending pages to the store's own directory, and wait for that; False without
        one, or when not all were written."""
        return self._store.cold_dir is not None and self._store.flush()

    def load_from_disk(self, cache_dir: str) -> int:
        """Read nothing, and return how many pages the disk holds."""
        cold = self._store.stats().cold
        return 0 if cold is None else cold.pages

    def set_ssd_tier(self, ssd_tier: Any) -> None:
        if ssd_tier is not None:
            _log.warning("the server's SSD tier stays unused: the store has its own")

    def check_ssd(self, tokens: Sequence[int]) -> None:
        """Return None: `fetch` has read the disk."""

    # Counts of memory.

    def get_stats(self) -> dict[str, Any]:
        """Return the server's counts. Bytes are those of all models in the store."""
        hot = self._store.stats().hot
        with self._lock:
            tally, used, limit = self._tally, hot.nbytes, self._max_memory
            asked = tally["hits"] + tally["misses"]
            return {
                "hits": tally["hits"],
                "misses": tally["misses"],
                "hit_rate": round(tally["hits"] / asked, 4) if asked else 0.0,
                "evictions": hot.evicted_pages - tally["evicted"],
                "tokens_saved": tally["tokens_saved"],
                "current_memory_mb": round(used / MB, 2),
                "max_memory_mb": round(limit / MB, 2),
                "memory_utilization": round(used / limit, 4) if limit else 0.0,
                "entry_count": len(self),
                "store_rejections": tally["rejected"],
            }

    def reset_stats(self) -> None:
        with self._lock:
            self._tally = Counter(evicted=self._store.stats().hot.evicted_pages)

    @property
    def _current_memory(self) -> int:
        """Bytes, under the name that the scheduler reads."""
        return self._store.hot_usage().nbytes

    @property
    def _max_memory(self) -> int:
        limit = self._store.hot_usage().limit_bytes
        return limit if self._most is None else min(limit, self._most)

    @property
    def _entries(self) -> "TieredPrefixCache":
        """The object whose length the scheduler reads."""
        return self

    @uninterrupted
    def __len__(self) -> int:
        with self._lock:
            return len(self._prompts)

    def __contains__(self, tokens: Sequence[int]) -> bool:
        """True when all of the tokens are restored for a prompt that goes on from them."""
        with self._lock:
            return bool(tokens) and self._prompts.restorable(self._key, tokens) == len(tokens)


def _twin(cache: Any) -> Any:
    """Return a cache of the same class and content, which sees no write to the other. Evaluates and
    copies nothing: MLX copies a buffer when one of its two owners writes."""
    twin = copy.copy(cache)
    for name, value in vars(cache).items():
        setattr(twin, name, shared(value))
    children = getattr(cache, "caches", None)
    if children:
        twin.caches = type(children)(map(_twin, children))
    return twin
