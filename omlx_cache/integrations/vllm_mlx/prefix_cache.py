"""TieredPrefixCache: what vllm-mlx's schedulers call, kept in a store's tiers."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from omlx_cache.codecs import CodecPolicy
from omlx_cache.integrations.mlx_lm.following import Following
from omlx_cache.integrations.mlx_lm.models import LoadedModel
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.padding import heeds_padding
from omlx_cache.integrations.vllm_mlx.prepared import Besides, Prepared, independent
from omlx_cache.integrations.vllm_mlx.tally import MB, Tally
from omlx_cache.store import BlockStore
from omlx_cache_storage.interrupts import uninterrupted

_log = logging.getLogger(__name__)


class TieredPrefixCache:
    """Stands in for vllm-mlx's MemoryAwarePrefixCache: the same calls, the same answers but these.

    A look-up leaves at least one token over, so there is no "exact" hit that has to be thrown away;
    only a prompt that something was kept beside (`prepare_store(auxiliary=)`) comes back whole.
    What it returns is the caller's own. Any prefix of what was stored is found, as far as the kind
    of its caches allows; entries replace nothing, and share their pages. `remove` deletes no pages,
    and the SSD tier of the server is not used: the store has its own.

    Models share the store's budgets. `make_cache` makes the empty caches that the server makes.
    Nothing is asked of the model before the first `fetch` or `store`. Those evaluate MLX, so they
    belong on the thread that runs the model; every other method may be called from any thread. No
    method raises for what the cache does.

    `_lock` guards `_tally`, `_besides`, `_given`, `_reserved` and the prompt cache.
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
        self._besides = Besides()
        self._tally = Tally()
        self._reserved = 0
        self._given: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
        self._last_match_type: str | None = None
        self._last_matched_key: tuple[int, ...] | None = None

    # What the scheduler asks for.

    def fetch(self, tokens: Sequence[int]) -> tuple[list[Any] | None, list[int]]:
        """Return private caches that hold a prefix of the tokens, and the tokens after it.

        `(None, tokens)` for a miss. Nothing is left over only where something was kept beside the
        whole prompt. Evaluates MLX and reads the disk.
        """
        prompt = list(tokens)
        with self._lock:
            caches, rest = self._fetch(prompt)
            position = len(prompt) - len(rest)
            self._tally.look_up(position)
            self._last_match_type = "prefix" if position else "miss"
            self._last_matched_key = tuple(prompt[:position]) if position else None
            if position and not rest:
                self._last_match_type = "exact"
            if caches:
                self._given[caches[0]] = prompt[:position]
            return caches, rest

    def _fetch(self, prompt: list[int]) -> tuple[list[Any] | None, list[int]]:
        if self._besides.get(prompt) is None:
            return self._prompts.fetch_nearest_cache(self._key, prompt)
        # Who keeps something beside a prompt uses both or none, whatever is left over.
        caches, rest = self._prompts.fetch_nearest_cache(self._key, [*prompt, 0])
        return (caches, []) if len(rest) == 1 else (None, prompt)

    def fetch_exact_auxiliary(self, tokens: Sequence[int]) -> dict[str, Any] | None:
        """Return what was kept beside exactly these tokens; None once the caches are gone."""
        with self._lock:
            kept = self._besides.get(tokens)
            if kept is None or tokens in self:
                return kept
            self._besides.forget(tokens)
            return None

    def clone_for_replay(self, cache: Sequence[Any]) -> list[Any] | None:
        """Return caches that may be computed on while the given ones stay as they are."""
        try:
            return independent(cache)
        except Exception:
            _log.exception("a cache cannot be copied")
            return None

    # What is stored while it is computed.

    @cached_property
    def heeds_padding(self) -> bool:
        """False for a model whose states take a batch's padding for tokens; computes a few tokens
        when it is asked first, on the thread that runs the model."""
        return heeds_padding(self._source.model)

    def held_by(self, cache: Sequence[Any] | None) -> list[int]:
        """Return the tokens that caches from `fetch` hold; [] for any others, which are empty."""
        with self._lock:
            return list(self._given.get(cache[0], ())) if cache else []

    def stops(self, tokens: Sequence[int], start: int, parts: Iterable[int] = ()) -> list[int]:
        """Return where a prompt's windows and recurrent state are wanted while it is computed from
        `start` on, the ends of a chat's parts among them; none for models that have only pages."""
        with self._lock:
            stops = self._prompts.stops(self._key, tokens, start)
        return sorted({*stops, *parts}) if stops else []

    def follow(self, tokens: Sequence[int]) -> Following | None:
        """Return what stores a sequence while it is computed; None for an unknown kind of cache."""
        with self._lock:
            return next(iter(self._prompts.followers(self._key, tokens, 0)), None)

    # What it stores.

    def store(
        self, tokens: Sequence[int], cache: Sequence[Any], evict_prefixes: bool = True
    ) -> bool:
        """Store the caches of a sequence; True when a later request can use some of it. Copies what
        is new, and evaluates it."""
        if not tokens or not cache:
            return False
        with self._lock:
            self._prompts.insert_cache(self._key, tokens, cache)
            stored = self._prompts.restorable(self._key, tokens) > 0
            self._tally.rejected += not stored
            return stored

    def prepare_store(
        self,
        tokens: Sequence[int],
        cache: Sequence[Any],
        auxiliary: dict[str, Any] | None = None,
    ) -> Prepared | None:
        """Return an entry of these caches as they are now, which `commit_prepared` publishes."""
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
                self._besides.keep(entry.tokens, entry.auxiliary)
            return stored

    def remove(self, tokens: Sequence[int], *, include_ssd: bool = False) -> bool:
        """Forget what was kept beside a prompt; True when a request could have used the prompt. Its
        pages leave when the store needs the room."""
        with self._lock:
            self._besides.forget(tokens)
            return tokens in self

    def clear(self) -> None:
        """Give back the model's memory and count anew. The disk keeps what it has; without one
        everything of the model is deleted."""
        with self._lock:
            self._besides.clear()
            try:
                self._prompts.clear(self._key)
            except Exception:
                _log.exception("the prefix cache is not cleared")
            self.reset_stats()

    # Between processes: the store is on the disk all the time.

    def save_to_disk(self, cache_dir: str) -> bool:
        """Write what is pending to the store's own directory, and wait for that; False without one,
        or when not all was written. The folder that is named stays empty."""
        return self._store.cold_dir is not None and self._store.flush()

    def load_from_disk(self, cache_dir: str) -> int:
        """Read nothing, and return how many pages the disk holds: a request finds them there."""
        cold = self._store.stats().cold
        return 0 if cold is None else cold.pages

    def set_ssd_tier(self, ssd_tier: Any) -> None:
        """Leave the server's own tier unused."""
        if ssd_tier is not None:
            _log.warning("the server's SSD tier stays unused: the store has its own")

    def check_ssd(self, tokens: Sequence[int]) -> None:
        """Return None: `fetch` has read the disk."""

    # What it counts.

    def try_reserve_memory(self, nbytes: int) -> bool:
        """Set aside room that something about to be stored needs; False when there is none."""
        with self._lock:
            if self._current_memory + nbytes > self._max_memory:
                return False
            self._reserved += nbytes
            return True

    def release_reserved_memory(self, nbytes: int) -> None:
        """Give back what was set aside."""
        with self._lock:
            self._reserved = max(0, self._reserved - nbytes)

    def get_stats(self) -> dict[str, Any]:
        """Return the counts that the server shows. Bytes are those of all models in the store."""
        hot = self._store.stats().hot
        with self._lock:
            return self._tally.report(
                len(self), hot.nbytes + self._reserved, self._max_memory, hot.evicted_pages
            )

    def reset_stats(self) -> None:
        """Count anew."""
        with self._lock:
            self._tally = Tally(evicted=self._store.stats().hot.evicted_pages)

    @property
    def memory_usage_mb(self) -> float:
        return self._current_memory / MB

    @property
    def memory_limit_mb(self) -> float:
        return self._max_memory / MB

    @property
    def _current_memory(self) -> int:
        """Bytes, under the name that the scheduler reads."""
        return self._store.hot_usage().nbytes + self._reserved

    @property
    def _max_memory(self) -> int:
        limit = self._store.hot_usage().limit_bytes
        return limit if self._most is None else min(limit, self._most)

    @property
    def _entries(self) -> "TieredPrefixCache":
        """What the scheduler asks the length of."""
        return self

    @uninterrupted
    def __len__(self) -> int:
        """Sequences that were stored through this object and are still in a tier."""
        with self._lock:
            return len(self._prompts)

    def __contains__(self, tokens: Sequence[int]) -> bool:
        """True when all of the tokens are restored for a prompt that goes on from them."""
        with self._lock:
            return bool(tokens) and self._prompts.restorable(self._key, tokens) == len(tokens)
