"""Scope: what may share pages. One model, one kind of cache, one salt; one restore, one commit."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omlx_cache import reasons
from omlx_cache.adapters.base import GroupSpec, UnsupportedCache
from omlx_cache.adapters.registry import extracted
from omlx_cache.codecs import CodecPolicy
from omlx_cache.commit.admission import Admission, CommitResult
from omlx_cache.commit.budgets import Budgets
from omlx_cache.commit.committer import Committer
from omlx_cache.commit.points import SnapshotPolicy
from omlx_cache.commit.progress import extent_of
from omlx_cache.commit.staging import Staging
from omlx_cache.identity.namespace import Namespace, computed_by
from omlx_cache.pages.layout import Layout, layout_of
from omlx_cache.requests.explainer import Walked
from omlx_cache.requests.log import AskedRequest
from omlx_cache.restore.gate import RestoreGate
from omlx_cache.restore.lookup import RestorePoint, find_restore_point
from omlx_cache.restore.pending import PendingRestore
from omlx_cache.restore.walk import Boundaries
from omlx_cache.store import BlockStore
from omlx_cache_storage.hints import Ended, Priority
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import KeyChain, Tokens
from omlx_cache_storage.page import PageId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoredSequence:
    """What a restore gave: a private list of caches at position `tokens`, fresh when that is 0.

    `pages` are those that it was made of; `wanted` is where a restore point was missed, for want of
    what is `lacking`; the first `matched` tokens are known. `cold_tokens` the disk gave,
    `remote_tokens` other machines; the first `local_tokens` were on this one.
    """

    prompt_cache: list[Any]
    tokens: int
    cold_tokens: int
    miss_reason: str | None
    pages: tuple[PageId, ...] = ()
    wanted: int | None = None
    matched: int = 0
    lacking: str = ""
    remote_tokens: int = 0
    local_tokens: int = 0


class Scope:
    """Restores and stores the sequences of one scope. Use it on the model's thread.

    No method raises for what the cache, the disk or an unsupported model does. Chains come from
    `chain` and belong to this scope.
    """

    def __init__(
        self,
        store: BlockStore,
        namespace: Namespace | None,
        fresh: Callable[[], list[Any]],
        *,
        policy: SnapshotPolicy,
        codec_policy: CodecPolicy,
        boundaries: Boundaries,
        budgets: Budgets,
        unsupported_reason: str | None = None,
    ) -> None:
        self.store = store
        self.unsupported_reason = unsupported_reason
        self._namespace = namespace
        self.fresh = fresh
        self._policy = policy
        self._codec_policy = codec_policy
        self._boundaries = boundaries
        self.budgets = budgets
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

    def same_as(self, other: "Scope") -> bool:
        """True when both stand for the same sequences of one store."""
        mine, theirs = self._namespace, other._namespace
        return self.store is other.store and (
            mine is theirs if mine is None or theirs is None else mine.digest == theirs.digest
        )

    def accepts(self, prompt_cache: Sequence[Any]) -> bool:
        """Return whether caches are of this scope's classes and parameters."""
        try:
            return self._blank is not None and (
                layout_of(prompt_cache).signature == self._blank.signature
            )
        except UnsupportedCache:
            return False

    def ask(self, tokens: int) -> AskedRequest:
        """Begin the record of a request for a prompt of so many tokens."""
        namespace = self._namespace
        if namespace is None:
            return self.store.requests.ask("", {}, tokens)
        return self.store.requests.ask(namespace.digest.hex(), namespace.document, tokens)

    def walked(self, chain: KeyChain, matched: int, lacking: str) -> Walked:
        """Return a look-up along a chain of this scope, for its explanation."""
        return Walked(chain, tuple(group.name for group in self.groups), matched, lacking)

    def chain(self, tokens: Tokens) -> KeyChain:
        """Return the keys of a sequence; raises ValueError for a scope that is not supported."""
        if self._namespace is None:
            raise ValueError("a model whose caches are not supported has no keys")
        return KeyChain(self._namespace.digest, tokens, self.store.settings.block_size)

    @uninterrupted
    def find(
        self,
        chain: KeyChain,
        limit: int,
        *,
        worth: bool = False,
        wait: float | None = None,
        asks: bool = True,
    ) -> RestorePoint:
        """Return how far a sequence can be restored, at most `limit`, or with `worth` how far it
        would be; reads no payload. Waits for other machines to say what they have, `wait` seconds
        at most; without `asks` they are not asked."""
        point = find_restore_point(
            chain,
            self.groups,
            self.store,
            limit=limit,
            known=self._boundaries.of(chain),
            gate=self._gate(probes=False) if worth else None,
            wait=wait,
            asks=asks,
        )
        return replace(point, reason=reasons.STORE_CLOSED) if self.store.closed else point

    def stops(self, start: int, stop: int, branch: int | None = None) -> list[int]:
        """Return where a prompt's windows and recurrent state are wanted while [start, stop) is
        prefilled; none for models that have only pages."""
        if self.trims:
            return []
        size = self.store.settings.block_size
        return self._policy.positions(start=start, stop=stop, block_size=size, branch=branch)

    def pending(
        self, chain: KeyChain, limit: int, capacity: int, stamp: int | None = None
    ) -> PendingRestore:
        """Return a restore of at most `limit` tokens into buffers with room for `capacity`, not
        begun; the chain belongs to it until it is taken."""
        return PendingRestore(
            self.store.restores,
            self.store,
            self.fresh,
            chain,
            limit=limit,
            capacity=capacity,
            known=self._boundaries.of(chain),
            stamp=stamp,
            gate=self._gate(),
        )

    def _gate(self, *, probes: bool = True) -> RestoreGate | None:
        gate = self.store.reading_gate
        if gate is None or self._namespace is None:
            return None
        return RestoreGate(gate, computed_by(self._namespace.document), probes=probes)

    def restore(self, chain: KeyChain, limit: int, capacity: int) -> RestoredSequence:
        """Restore at most `limit` tokens into buffers with room for `capacity`; evaluates MLX, and
        waits for the disk."""
        return take(self.pending(chain, limit, capacity), None)

    def committer(
        self,
        chain: KeyChain,
        staging: Staging,
        *,
        start: int = 0,
        local: int | None = None,
        prompt_length: int = 0,
        own: Iterable[PageId] = (),
        stops: Iterable[int] = (),
        stamp: int | None = None,
        along: Iterable[PageId] = (),
        priority: Priority = "normal",
        since_ns: int | None = None,
    ) -> Committer:
        """Return what hands a sequence's pages to the tiers; for supported scopes only."""
        if self._namespace is None:
            raise ValueError("a model whose caches are not supported stores nothing")
        return Committer(
            self.store,
            Admission(
                self.store,
                staging,
                own,
                stamp,
                self.store.settings.commit_wait_seconds,
                along,
                priority=priority,
                since_ns=since_ns,
            ),
            self._namespace,
            chain,
            staging,
            self._codec_policy,
            self.budgets,
            groups=self.groups,
            start=start,
            local=local,
            prompt_length=prompt_length,
            stops=stops,
        )

    def remember(self, chain: KeyChain, result: CommitResult) -> None:
        """Note how far a commit went, for layouts whose pages do not tell, and for people."""
        end = result.tokens
        if self.store.requests.trace is not None:
            self.store.requests.trace.note_size(chain.namespace, self.budgets.token_bytes)
        if all(group.kind != "paged" for group in self.groups):
            self._boundaries.remember(chain, end)
        self.store.requests.stored(chain, end, result.skipped)

    @uninterrupted
    def commit(
        self,
        chain: KeyChain,
        prompt_cache: Sequence[Any],
        prompt_length: int = 0,
        along: Iterable[PageId] = (),
        since_ns: int = 0,
        ended: Ended | None = None,
    ) -> CommitResult:
        """Hand a finished sequence's pages to the tiers; copies, and evaluates what it copies.

        Window groups are kept as far as the ring still holds them, recurrent state at the
        position where the cache is. The end of the prompt gets a page of its own, so that the
        same prompt is found up to there. `along` are pages that were stored while it grew: they
        share its place in the eviction order, which depends on how the answer ended, but for pages
        with a stamp later than `since_ns`, which others have used.
        """
        began = time.perf_counter()
        result = self._commit(chain, prompt_cache, prompt_length, along, ended, since_ns)
        counters = self.store.counters
        counters.commit(result.skipped)
        counters.histograms.observe("commit_seconds", time.perf_counter() - began)
        return result

    def _commit(
        self,
        chain: KeyChain,
        prompt_cache: Sequence[Any],
        prompt_length: int,
        along: Iterable[PageId],
        ended: Ended | None,
        since_ns: int,
    ) -> CommitResult:
        if not self.accepts(prompt_cache):
            return CommitResult.none(reasons.LAYOUT_CHANGED)
        staging = Staging(self.store.counters, self.store.snapshot_bytes)
        try:
            layout = layout_of(extracted(prompt_cache))
            stops = self.stops(0, len(chain) + 1)
            committer = self.committer(
                chain,
                staging,
                prompt_length=prompt_length,
                stops=stops,
                along=along,
                since_ns=since_ns,
            )
            result = committer.finish(layout, extent_of(layout, len(chain)), ended)
            self.remember(chain, result)
            return result
        except UnsupportedCache as error:
            return CommitResult.none(reasons.word(unsupported(error)))
        except Exception:
            _log.exception("commit failed, nothing more is stored")
            return CommitResult.none(reasons.ERROR)
        finally:
            staging.release()


@uninterrupted
def take(pending: PendingRestore, deadline: float | None) -> RestoredSequence:
    """Return what a pending restore has brought, after `deadline` seconds at most; None waits for
    all of it. Evaluates MLX."""
    taken = pending.take(deadline)
    point = taken.point
    pages = tuple(use.page for use in point.all_uses)
    return RestoredSequence(
        taken.prompt_cache,
        point.position,
        taken.cold_tokens,
        point.reason,
        pages,
        point.wanted_state,
        point.matched,
        point.lacking,
        taken.remote_tokens,
        taken.local_tokens,
    )


def unsupported(error: Exception) -> str:
    """Return the miss reason for a cache that no adapter reads."""
    return f"{reasons.UNSUPPORTED}:{error}"
