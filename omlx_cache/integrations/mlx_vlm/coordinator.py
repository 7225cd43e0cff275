"""What a generator of mlx-vlm calls: look-up, checkpoints and commit, on a store."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlx_vlm import apc
from mlx_vlm.apc import APCCoordinator

from omlx_cache import reasons
from omlx_cache.adapters.registry import children
from omlx_cache.integrations.mlx_vlm.manager import ApcManager
from omlx_cache.integrations.mlx_vlm.rows import row_of
from omlx_cache.integrations.mlx_vlm.sequences import Sequences
from omlx_cache.integrations.mlx_vlm.under_way import Asked
from omlx_cache.integrations.naming import digest_of

_log = logging.getLogger(__name__)

LEAST = 16
"""Tokens of the shortest prefix that is restored: less is not worth a batch of its own."""
PROMPTS = 256
"""Prompts that were looked up, and whose restore points are still to be chosen."""


class StoreCoordinator(APCCoordinator):  # type: ignore[misc]
    """APCCoordinator's calls for one generator. `plain` says that a prompt computed alone has the
    model's own caches, and not a batch's. Nothing here raises: what goes wrong is a miss.

    Mutable, by the generation thread: `_looked_up`, and `asked`, what was looked up last.
    """

    def __init__(
        self, manager: ApcManager, model: Any, sequences: Sequences, *, plain: bool
    ) -> None:
        super().__init__(manager, model)
        self._sequences = sequences
        self._plain = plain
        self.asked: Asked | None = None
        self._looked_up: OrderedDict[bytes, tuple[int, int | None]] = OrderedDict()

    @property
    def enabled(self) -> bool:
        return True

    @property
    def strategy(self) -> str:
        return "checkpoint" if self._sequences.stateful else "block"

    @property
    def legacy_mode(self) -> str:
        return "exact" if self.is_checkpoint else "block"

    def lookup(
        self,
        token_ids: Sequence[int],
        *,
        extra_hash: int,
        safe_lookup_min: int,
        suffix_is_text_only: Callable[[int], bool],
        prefix_has_media: Callable[[int], bool],
    ) -> dict[str, Any] | None:
        """Return a restored prefix that leaves text only, None when there is none."""
        tokens = list(token_ids)

        def useful(length: int) -> bool:
            return length >= LEAST and suffix_is_text_only(length)

        warm, missed, record = self._sequences.warm(tokens, extra_hash, useful)
        self.asked = Asked(record, tokens, extra_hash)
        if self.is_checkpoint:
            self._looked_up[digest_of(tokens)] = (0 if warm is None else warm.tokens, missed)
            while len(self._looked_up) > PROMPTS:
                self._looked_up.popitem(last=False)
        self.manager.note(0 if warm is None else warm.tokens)
        if warm is None:
            return None
        return {
            "matched_blocks": [],
            "warm_cache": warm.caches,
            "prefix_len": warm.tokens,
            "extra_hash": extra_hash,
            "full_input_ids": tokens,
            "cache_plan": self.plan,
        }

    def checkpoint_len(self, token_ids: Sequence[int], media_token_ids: set[int]) -> int:
        """Return the last place where a prompt's state is kept: before its last token."""
        return max(self.checkpoint_lengths(token_ids, media_token_ids), default=0)

    def checkpoint_lengths(self, token_ids: Sequence[int], media_token_ids: set[int]) -> list[int]:
        """Return where a prompt's state is kept, never before an image: no such prefix serves."""
        if not self.is_checkpoint:
            return []
        start, missed = self._looked_up.get(digest_of(token_ids), (0, None))
        first = apc.media_safe_prefix_min(token_ids, media_token_ids)
        stops = self._sequences.stops(start, len(token_ids), missed)
        return [stop for stop in stops if stop >= first]

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
        if len(rows) > 1 and any(_chunked(leaf) for row in rows for leaf in _leaves(row)):
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
        if (
            caches
            and len(rows) > 1
            and not all(callable(getattr(c, "prepare", None)) for c in caches)
        ):
            # Rows of different lengths are padded, which such a batch cannot be.
            return None
        return caches

    def materialize_single(
        self,
        hit: dict[str, Any],
        *,
        min_capacity_tokens: int,
        kv_quant_config: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Return a hit's caches."""
        with self.manager.lock:
            self.manager.stats.restored_tokens += hit["prefix_len"]
        caches: list[Any] = hit["warm_cache"]
        return caches

    def store_checkpoint(
        self,
        token_ids: Sequence[int],
        prompt_cache: Sequence[Any],
        *,
        extra_hash: int = 0,
        batch_idx: int | None = None,
    ) -> bool:
        """Store what a row of a batch holds, which is `token_ids`."""
        return self._store(token_ids, prompt_cache, extra_hash, batch_idx)

    def commit(
        self,
        prompt_cache: Sequence[Any],
        token_ids: Sequence[int],
        *,
        batch_idx: int | None = None,
        extra_hash: int = 0,
        skip_first_n_tokens: int = 0,
        blocks_in_use: Sequence[Any] = (),
    ) -> bool:
        """Store what a row of a batch holds, which is `token_ids`."""
        return self._store(token_ids, prompt_cache, extra_hash, batch_idx)

    def _store(
        self,
        tokens: Sequence[int],
        prompt_cache: Sequence[Any],
        extra_hash: int,
        batch_idx: int | None,
    ) -> bool:
        try:
            row: Sequence[Any] | None = prompt_cache
            if not self._sequences.accepts(prompt_cache) or _is_batch(prompt_cache):
                row = row_of(prompt_cache, batch_idx or 0)
        except Exception:
            _log.exception("a row of the batch is not stored")
            row = None
        if row is None:
            self.manager.store.counters.skip(reasons.LAYOUT_CHANGED)
            return False
        return self._sequences.store(tokens, row, extra_hash)


def _leaves(caches: Sequence[Any]) -> Iterator[Any]:
    for cache in caches:
        inner = children(cache)
        if inner is None:
            yield cache
        else:
            yield from _leaves(inner)


def _is_batch(caches: Sequence[Any]) -> bool:
    return any(int(getattr(leaf, "batch_size", 1)) > 1 for leaf in _leaves(caches))


def _chunked(cache: Any) -> bool:
    return hasattr(cache, "chunk_size")
