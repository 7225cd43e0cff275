"""Whole sequences without a session: for servers that fetch a cache and insert a finished one."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omlx_cache import reasons
from omlx_cache.adapters.base import GroupSpec, UnsupportedCache
from omlx_cache.commit.committer import Committer
from omlx_cache.commit.progress import extent_of
from omlx_cache.commit.staging import Staging
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.layout import Layout, layout_of
from omlx_cache.restore.lookup import RestorePoint, find_restore_point
from omlx_cache.restore.run import restore, unsupported
from omlx_cache.results import CommitResult
from omlx_cache_storage.keys import KeyChain, Tokens
from omlx_cache_storage.stats import Counters

if TYPE_CHECKING:
    from omlx_cache.prefix import PrefixCache

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoredSequence:
    """What a restore gave: a private list of caches at position `tokens`, fresh when that is 0."""

    prompt_cache: list[Any]
    tokens: int
    cold_tokens: int
    miss_reason: str | None


def count_request(
    counters: Counters, asked: int, restored: int, cold: int, seconds: float, reason: str | None
) -> None:
    """Count one request and what was restored of it, as a session counts itself."""
    counters.add(
        sessions=1,
        asked_tokens=asked,
        restored_tokens=restored,
        restored_cold_tokens=cold,
        restored_hot_tokens=restored - cold,
    )
    counters.add_seconds("restore", seconds)
    rate = counters.prefill_rate()
    if restored and rate:
        counters.add_seconds("saved", restored / rate - seconds)
    if reason is not None:
        counters.miss(reasons.word(reason))


class SequenceView:
    """One model's sequences under one salt and one kind of cache. Use it on the model's thread.

    No method raises for what the cache, the disk or an unsupported model does. Chains come from
    `chain` and belong to this view. Counts nothing but skips and misses.
    """

    def __init__(
        self, cache: "PrefixCache", namespace: Namespace | None, fresh: Callable[[], list[Any]]
    ) -> None:
        self._cache = cache
        self._store = cache.store
        self._namespace = namespace
        self._fresh = fresh
        self._blank: Layout | None = None if namespace is None else layout_of(fresh())

    @property
    def supported(self) -> bool:
        return self._blank is not None

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The layer groups, paged first; () for a model that is not supported."""
        return () if self._blank is None else self._blank.groups

    @property
    def trims(self) -> bool:
        """True when a stored sequence can be restored to any shorter length."""
        return all(group.kind == "paged" for group in self.groups)

    def fresh(self) -> list[Any]:
        """Return a new, empty prompt cache."""
        return self._fresh()

    def accepts(self, prompt_cache: Sequence[Any]) -> bool:
        """Return whether caches are of this view's classes and parameters."""
        try:
            return self._blank is not None and (
                layout_of(prompt_cache).signature == self._blank.signature
            )
        except UnsupportedCache:
            return False

    def chain(self, tokens: Tokens) -> KeyChain:
        """Return the keys of a sequence; raises ValueError for a view that is not supported."""
        if self._namespace is None:
            raise ValueError("a model whose caches are not supported has no keys")
        settings = self._store.settings
        return KeyChain(self._namespace.digest, tokens, settings.block_size, settings.key_hash)

    def reach(self, chain: KeyChain, limit: int) -> RestorePoint:
        """Return how far a sequence can be restored, at most `limit`; reads no payload."""
        known = self._cache.known_boundaries(chain)
        return find_restore_point(chain, self.groups, self._store, limit=limit, known=known)

    def restore(self, chain: KeyChain, limit: int, capacity: int) -> RestoredSequence:
        """Restore at most `limit` tokens into buffers with room for `capacity`; evaluates MLX."""
        prompt_cache = self._fresh()
        try:
            restored = restore(
                self._store,
                layout_of(prompt_cache),
                chain,
                limit=limit,
                capacity=capacity,
                known=self._cache.known_boundaries(chain),
            )
        except Exception as error:
            _log.exception("restore failed, the request is computed in full")
            reason = f"{reasons.ERROR}:{type(error).__name__}"
            return RestoredSequence(self._fresh(), 0, 0, reason)
        point = restored.point
        return RestoredSequence(prompt_cache, point.position, restored.cold_tokens, point.reason)

    def store(
        self, chain: KeyChain, prompt_cache: Sequence[Any], prompt_length: int = 0
    ) -> CommitResult:
        """Hand a finished sequence's pages to the tiers; copies, and evaluates what it copies.

        Window groups are kept as far as the ring still holds them, recurrent state at the
        position where the cache is. The end of the prompt gets a page of its own, so that the
        same prompt is found up to there.
        """
        began = time.perf_counter()
        result = self._commit(chain, prompt_cache, prompt_length)
        counters = self._store.counters
        counters.commit(result.skipped)
        counters.add_seconds("commit", time.perf_counter() - began)
        return result

    def _commit(
        self, chain: KeyChain, prompt_cache: Sequence[Any], prompt_length: int
    ) -> CommitResult:
        if self._namespace is None or not self.accepts(prompt_cache):
            return CommitResult(0, 0, 0, 0, {reasons.LAYOUT_CHANGED: 1})
        counters = self._store.counters
        staging = Staging(counters, self._store.settings.snapshot_bytes)
        try:
            layout = layout_of(prompt_cache)
            committer = Committer(
                self._store,
                self._namespace,
                chain,
                layout,
                staging,
                self._cache.codec_policy,
            )
            result = committer.run(prompt_length, extent_of(layout, len(chain)))
            self._cache.remember(chain, result.tokens)
            return result
        except UnsupportedCache as error:
            return CommitResult(0, 0, 0, 0, {reasons.word(unsupported(error)): 1})
        except Exception:
            _log.exception("commit failed, nothing more is stored")
            return CommitResult(0, 0, 0, 0, {reasons.ERROR: 1})
        finally:
            staging.release()
