"""ApcManager: what mlx-vlm takes as its APC manager, kept in tiers and shared between prompts."""

import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from omlx_cache.integrations.mlx_vlm.form import KvForm
from omlx_cache.integrations.mlx_vlm.plan import MemoryPlan
from omlx_cache.integrations.mlx_vlm.sequences import Sequences
from omlx_cache.store import BlockStore

KEEPS_ALL = 1 << 20


class ApcManager:
    """Stands in for mlx-vlm's APCManager: one for each loaded model, all on one store.

    `whole` returns the model around a language model, None when it is not known. `model_id` names
    the model for people. A generator that it was given to (`CachedBatchGenerator`, or `install`)
    keeps whole prompts through `sequences`; others find nothing in it and store nothing: what they
    say of a cache does not tell packed KV from dense. Nothing here raises, or ends the store.

    Mutable, by the generation thread: `sequences`, `memory_plan`. `stats` is guarded by `lock`.
    """

    disk = None
    block_size = 1
    num_blocks = 0
    exact_cache_guard_tokens = 1
    exact_cache_min_tokens = 2
    checkpoint_interval_tokens = 0
    memory_max_bytes = 0
    _exact_cache_max = KEEPS_ALL

    def __init__(
        self,
        store: BlockStore,
        *,
        whole: Callable[[Any], Any] = lambda language_model: None,
        model_id: str | None = None,
    ) -> None:
        self.store = store
        self.lock = threading.RLock()
        self.memory_plan = MemoryPlan()
        self.sequences: Sequences | None = None
        self._whole = whole
        self._model_id = model_id
        self.reset_stats()

    def bind(self, language_model: Any, form: KvForm) -> Sequences:
        """Return the sequences of a model in one form; evaluates samples of its weights when it is
        not the one of the last call."""
        known = self.sequences
        if known is None or not known.of(language_model, form):
            known = self.sequences = Sequences(
                language_model,
                self.store,
                form,
                whole=self._whole(language_model),
                model_id=self._model_id,
            )
        return known

    def coordinator(self, model: Any) -> Any:
        """Return mlx-vlm's coordinator on this manager, as its own does."""
        from mlx_vlm.apc import APCCoordinator

        return APCCoordinator(self, model)

    def lookup_prefix(self, token_ids: Any, extra_hash: int = 0) -> tuple[list[Any], int]:
        return [], 0

    def lookup_exact_cache(self, *_asked: Any, **_options: Any) -> tuple[None, int]:
        return None, 0

    def lookup_prefix_disk_cache(self, *_asked: Any, **_options: Any) -> tuple[None, int]:
        return None, 0

    def store_exact_cache(self, *_stored: Any, **_options: Any) -> bool:
        return False

    def store_kv_blocks(self, *_stored: Any, **_options: Any) -> list[Any]:
        return []

    def release(self, blocks: Iterable[Any]) -> None:
        """Do nothing: what was restored is the request's own."""

    def prepare_prefill(self, reserve_bytes: int) -> None:
        """Do nothing: the store gives memory back when the machine is short of it."""

    def _make_room(self, allocation_bytes: int = 0, *, retain_bytes: int = 0) -> bool:
        return True

    def note(self, hit_tokens: int) -> None:
        """Count one look-up."""
        with self.lock:
            self.stats.hits += hit_tokens > 0
            self.stats.misses += hit_tokens == 0
            self.stats.matched_tokens += hit_tokens

    def resident_bytes(self) -> int:
        """Return what the store has in memory, of every model."""
        return self.store.stats().hot.nbytes

    def stats_snapshot(self) -> dict[str, object]:
        """Return what the server shows as its cache's figures; of the store what is its own."""
        stats = self.store.stats()
        with self.lock:
            counted = dict(vars(self.stats))
        cold = stats.cold
        return {
            "cache": "omlx-cache",
            **counted,
            "resident_bytes": stats.hot.nbytes,
            "memory_max_bytes": self.store.settings.hot_bytes,
            "disk_bytes": 0 if cold is None else cold.nbytes,
        }

    def reset_stats(self) -> None:
        with self.lock:
            self.stats = SimpleNamespace(
                hits=0, misses=0, matched_tokens=0, restored_tokens=0, memory_skips=0
            )

    def clear(self) -> None:
        """Forget the counts. The server calls this whenever it unloads a model, whose pages are to
        be found again; `omlx-cache rm` and `prune` delete."""
        self.reset_stats()

    def close(self) -> None:
        """Do nothing: the store is its opener's to close."""
