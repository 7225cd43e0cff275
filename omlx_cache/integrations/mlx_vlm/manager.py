"""The APC manager and coordinator of mlx-vlm, kept in tiers and shared between prompts."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from mlx_vlm import apc
from mlx_vlm.apc import APCCoordinator, APCManager

from omlx_cache import reasons
from omlx_cache.adapters.registry import extract_row, leaves
from omlx_cache.integrations.lanes import digest_of
from omlx_cache.integrations.mlx_vlm.sequences import KvForm, Sequences, UnderWay
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)

LEAST = 16
"""Tokens of the shortest prefix that is restored: less is not worth a batch of its own."""
PROMPTS = 256
"""Prompts whose restore points are still to be chosen, at most."""
NOTHING = {"checkpoint_entries": 0, "memory_max_gb": 0}


class ApcManager(APCManager):  # type: ignore[misc]
    """Stands in for mlx-vlm's APCManager: one for each loaded model, all on one store.

    `whole` returns the model around a language model, None when it is not known. `model_id` names
    the model for people. `own` makes mlx-vlm's manager, for a version that cannot have this one.
    Generators of `ApcBatchGenerator` and `install` keep whole prompts through `sequences`. Others
    find and store nothing, as it has no blocks: they do not tell packed KV from dense. Mutable, by
    the generation thread: `sequences`.
    """

    def __init__(
        self,
        store: BlockStore,
        *,
        whole: Callable[[Any], Any] = lambda language_model: None,
        model_id: str | None = None,
        own: Callable[[], Any] = lambda: None,
    ) -> None:
        super().__init__(num_blocks=0, block_size=1, overrides=NOTHING)
        self.store = store
        self.sequences: Sequences | None = None
        self._whole = whole
        self._model_id = model_id
        self._make_own = own

    @cached_property
    def own(self) -> Any:
        """mlx-vlm's manager, None where its cache is switched off; made now."""
        return self._make_own()

    def bind(self, language_model: Any, form: KvForm) -> Sequences:
        """Return the sequences of a model in one form; evaluates samples of the weights of another
        model than the last one."""
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

    def stats_snapshot(self) -> dict[str, object]:
        """Return the figures that the server shows as its cache's."""
        stats = self.store.stats()
        names = ("hits", "misses", "matched_tokens", "restored_tokens", "memory_skips")
        with self.lock:
            counted = {name: getattr(self.stats, name) for name in names}
        cold = stats.cold
        return {
            "cache": "omlx-cache",
            **counted,
            "resident_bytes": stats.hot.nbytes,
            "memory_max_bytes": self.store.settings.hot_bytes,
            "disk_bytes": 0 if cold is None else cold.nbytes,
        }

    def clear(self) -> None:
        """Forget the counts. The server calls this when it unloads a model, whose pages are to be
        found again."""
        self.reset_stats()


class StoreCoordinator(APCCoordinator):  # type: ignore[misc]
    """APCCoordinator's calls for one generator. With `plain` a prompt computed alone has the
    model's own caches, and not a batch's. Nothing here raises: a failure is a miss. Mutable, by the
    generation thread: `_looked_up`, and `asked`, the last lookup."""

    enabled = True

    def __init__(
        self, manager: ApcManager, model: Any, sequences: Sequences, *, plain: bool
    ) -> None:
        super().__init__(manager, model)
        self._sequences = sequences
        self._plain = plain
        self.asked: UnderWay | None = None
        self._looked_up: OrderedDict[bytes, tuple[int, int | None]] = OrderedDict()

    @property
    def strategy(self) -> str:
        return "checkpoint" if self._sequences.stateful else "block"

    @property
    def legacy_mode(self) -> str:
        return "exact" if self.is_checkpoint else "block"

    def lookup(
        self, token_ids: Sequence[int], *, extra_hash: int, **options: Any
    ) -> dict[str, Any] | None:
        """Return a restored prefix that leaves text only."""
        tokens = list(token_ids)
        text_only = options["suffix_is_text_only"]

        def useful(length: int) -> bool:
            return length >= LEAST and bool(text_only(length))

        restored, record = self._sequences.restore(tokens, extra_hash, useful)
        position = restored.point.position
        self.asked = UnderWay(record, tokens, extra_hash)
        if self.is_checkpoint:
            self._looked_up[digest_of(tokens)] = position, restored.point.wanted_state
            while len(self._looked_up) > PROMPTS:
                self._looked_up.popitem(last=False)
        with self.manager.lock:
            self.manager.stats.hits += position > 0
            self.manager.stats.misses += position == 0
            self.manager.stats.matched_tokens += position
        if not position:
            return None
        return {
            "matched_blocks": [],
            "warm_cache": restored.prompt_cache,
            "prefix_len": position,
            "extra_hash": extra_hash,
            "full_input_ids": tokens,
            "cache_plan": self.plan,
        }

    def checkpoint_lengths(self, token_ids: Sequence[int], media_token_ids: set[int]) -> list[int]:
        """Return where a prompt's state is kept, never before an image: no such prefix serves."""
        if not self.is_checkpoint:
            return []
        start, missed = self._looked_up.get(digest_of(token_ids), (0, None))
        first = apc.media_safe_prefix_min(token_ids, media_token_ids)
        return [n for n in self._sequences.stops(start, len(token_ids), missed) if n >= first]

    def merge_rows(
        self,
        picks: Sequence[dict[str, Any] | None],
        prefix_lens: Sequence[int],
        *,
        kv_quant_config: dict[str, Any] | None = None,
    ) -> tuple[list[Any] | None, int]:
        """Return the caches of a batch of restored and new rows; (None, 0) computes all of it."""
        try:
            merged = self._merged(picks, prefix_lens, kv_quant_config)
        except Exception:
            _log.exception("restored rows make no batch: they are computed")
            merged = None
        if merged is None:
            self.manager.store.counters.skip(reasons.LAYOUT_CHANGED)
            return None, 0
        with self.manager.lock:
            self.manager.stats.restored_tokens += sum(prefix_lens)
        return merged, max(prefix_lens)

    def _merged(
        self,
        picks: Sequence[dict[str, Any] | None],
        prefix_lens: Sequence[int],
        kv_quant_config: dict[str, Any] | None,
    ) -> list[Any] | None:
        rows = [self._sequences.fresh() if pick is None else pick["warm_cache"] for pick in picks]
        if len(rows) == 1 and self._plain:
            return rows[0]
        if len(rows) > 1 and any(
            hasattr(leaf, "chunk_size") for r in rows for _, leaf in leaves(r)
        ):
            # Their batch takes a chunked row for an empty one.
            return None
        packed = any(
            pick is not None and self._sequences.form.packs(len(pick["full_input_ids"]))
            for pick in picks
        )
        caches: list[Any] | None
        caches, _longest = apc.make_warm_batch_exact_cache_multi(
            rows, prefix_lens, kv_quant_config=kv_quant_config if packed else None
        )
        if caches and len(rows) > 1 and not all(hasattr(cache, "prepare") for cache in caches):
            # Rows of different lengths are padded, which such a batch cannot be.
            return None
        return caches

    def store_checkpoint(
        self,
        token_ids: Sequence[int],
        prompt_cache: Sequence[Any],
        *,
        extra_hash: int = 0,
        batch_idx: int | None = None,
    ) -> bool:
        """Store the caches of a batch's row, which hold `token_ids`."""
        try:
            row: Sequence[Any] | None = prompt_cache
            rows = any(int(getattr(leaf, "batch_size", 1)) > 1 for _, leaf in leaves(prompt_cache))
            if rows or not self._sequences.accepts(prompt_cache):
                row = [extract_row(cache, batch_idx or 0) for cache in prompt_cache]
        except Exception:
            _log.exception("a row of the batch is not stored")
            row = None
        if row is None:
            self.manager.store.counters.skip(reasons.LAYOUT_CHANGED)
            return False
        return self._sequences.store(token_ids, row, extra_hash)

    def commit(
        self,
        prompt_cache: Sequence[Any],
        token_ids: Sequence[int],
        *,
        batch_idx: int | None = None,
        extra_hash: int = 0,
        **_options: Any,
    ) -> bool:
        return self.store_checkpoint(
            token_ids, prompt_cache, extra_hash=extra_hash, batch_idx=batch_idx
        )
