"""Preparation: a prompt's beginning that is computed before anybody asks for it."""

import logging
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

from omlx_cache import reasons
from omlx_cache.arrays.mlxio import feed
from omlx_cache.begun import flat_tokens
from omlx_cache.commit.committer import Committer
from omlx_cache.commit.live import LiveExtent, Staging
from omlx_cache.pages.layout import Layout, layout_of
from omlx_cache.restore.pending import PendingRestore
from omlx_cache.scope import MOST_TOKENS, Scope
from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.keys import KeyChain, Tokens

_log = logging.getLogger(__name__)

TOO_SLOW = "too_slow"
"""A step, or the restore before it, would take too long."""
SHORT_OF_MEMORY = "short_of_memory"
DELETED = "deleted"
"""Pages were deleted on request meanwhile."""
OTHER_MODEL = "other_model"
"""The model of a step is not the one of the `PrefixCache`."""


class Preparation:
    """What `PrefixCache.prepare` returns: `step` computes and stores a chunk of it, and `close`
    gives up; both on the model's thread. Neither raises.

    Its end becomes a restore point, and so does the place where it is given up. Its pages are
    evicted first, evict only pages that the disk has, and reach the disk when a request uses them.
    While the system is short of memory nothing is prepared, nor where a step would take too long.
    After a deletion on request it ends, and stores nothing. `source` is the chain that it is
    restored from, which may part from it later, and how far that is the same and can be restored;
    without one its own is looked up.

    Mutable by that thread: `computed` (tokens so far), `is_over`, `reason` (why it ended early,
    perhaps with details after a colon), `_position` (tokens that are there), `_pending`, which is
    being read, and then `_committer` and `_layout`.
    """

    def __init__(
        self,
        scope: Scope,
        tokens: "Sequence[int] | Tokens",
        most: int | None = None,
        source: tuple[KeyChain, int] | None = None,
    ) -> None:
        store = self._store = scope.store
        self.computed = self._position = 0
        self._most = most
        self._source = source
        self._scope = scope
        self._pid = os.getpid()
        self._stamp = store.last_stamp()
        self._deletions = store.deletions
        self._staging = Staging(store.counters, store.snapshot_bytes)
        self._prompt_cache: list[Any] = []
        self._layout: Layout | None = None
        self._committer: Committer | None = None
        self._pending: PendingRestore | None = None
        self._chain: KeyChain | None = None
        self._tokens = flat_tokens(tokens, store.arguments)
        self.reason = scope.unsupported_reason or ("" if store.retains else reasons.NO_ROOM)
        self.is_over = bool(self.reason) or not len(self._tokens)
        # It may run anywhere, under any lock.
        weakref.finalize(self, store.counters.defer, self._staging.release)

    @property
    def ready(self) -> bool:
        """True unless `step` would only wait for the disk. Cheap to poll."""
        pending = self._pending
        return pending is None or pending.ready

    @uninterrupted
    def step(self, model: Any) -> bool:
        """Compute the next chunk, of a tenth of a second as far as is known, and store the blocks
        that it completes; False when nothing is left to do. Waits for no disk: the first steps only
        begin to read what is cached, and take that."""
        if self.is_over or self._pid != os.getpid():
            # What its locks guard is the parent's.
            return False
        hindrances = {
            reasons.STORE_CLOSED: self._store.closed,
            SHORT_OF_MEMORY: self._store.is_short_of_memory,
            DELETED: self._is_deleted,
            OTHER_MODEL: not callable(model) or not self._scope.kinds.is_of(model),
        }
        self.reason = next((word for word, is_so in hindrances.items() if is_so), "")
        if self.reason:
            self.close()
        if self.reason == OTHER_MODEL:
            self._store.arguments.ignore("model", type(model), "the model of the PrefixCache")
        if self.is_over or not self.ready:
            return not self.is_over
        try:
            if self._committer is not None:
                self._compute(model, self._committer)
            elif self._pending is not None:
                self._take(self._pending)
            else:
                self._begin()
        except Exception as error:
            _log.exception("a preparation is given up")
            self._end(f"{reasons.ERROR}:{type(error).__name__}")
        return not self.is_over

    @uninterrupted
    def close(self) -> None:
        """Give up: what was computed can be restored, and all that it holds is given back. Any
        number of times."""
        if self._pid != os.getpid():
            return
        try:
            committer, layout, stop = self._committer, self._layout, self._position
            is_kept = self.computed and not self._is_deleted
            if committer is not None and layout is not None and is_kept:
                chain, start, store = committer.chain, stop - self.computed, self._store
                self._scope.finish(committer, layout, LiveExtent(stop, True), asked=False)
                store.requests.prepared.add(chain, start, stop)
                flight = store.flights.begin(chain, start, None if self._scope.trims else [stop])
                flight.reach(stop)
                flight.end()
        except Exception:
            _log.exception("what was prepared is not stored")
        self._end()

    @property
    def _is_deleted(self) -> bool:
        """True when pages were deleted on request: some may be its own."""
        return self._store.deletions != self._deletions

    def _begin(self) -> None:
        scope, most = self._scope, self._most
        chain = scope.chain(self._tokens)
        source, found = self._source or (chain, scope.find(chain, len(chain), wait=0.0).position)
        if most is not None and found + most < len(chain):
            chain = scope.chain(self._tokens[: found + max(0, most)])
        pace, missing = scope.kinds.pace, len(chain) - found
        pace.ask(self._store.counters.work.rate(scope.namespace.computed_by))
        if not missing:
            return self._end()
        if pace.is_slow(scope.fewest_tokens) or pace.restores_slowly(found, missing):
            return self._end(TOO_SLOW)
        # Memory must take a block.
        nbytes = scope.kinds.budgets.token_bytes * chain.block_size
        with self._store.admit(nbytes, prepared=True) as room:
            if not room:
                return self._end(reasons.NO_ROOM)
        # A restore leaves one token at least to be computed.
        self._position = min(found, len(chain) - 1)
        # What is read belongs to the reader until it is taken.
        self._chain = scope.chain(chain.tokens)
        self._pending = scope.pending(
            source, self._position, len(chain), self._stamp, prepared=True
        )
        self._pending.start()

    def _take(self, pending: PendingRestore) -> None:
        """Take what was read; give up unless it is all that was found: the rest was to be prepared,
        and not that."""
        began = time.perf_counter()
        restored, chain = pending.take(0.0), self._chain
        self._scope.kinds.pace.restored(restored.point.position, time.perf_counter() - began)
        assert chain is not None
        if restored.point.position < self._position:
            return self._end(restored.point.reason or reasons.ABSENT)
        self._pending = None
        self._prompt_cache = restored.prompt_cache
        self._layout = layout_of(restored.prompt_cache)
        self._committer = self._scope.committer(
            chain,
            self._staging,
            start=self._position,
            local=restored.local_tokens,
            prompt_length=len(chain),
            own=restored.point.root_first,
            stops=[len(chain)],
            stamp=self._stamp,
            prepared=self._deletions,
        )

    def _compute(self, model: Any, committer: Committer) -> None:
        # Peer processes may delete its prefix: it knows that once the chunk is there.
        self._store.refresh(0.0)
        chain, start, began = committer.chain, self._position, time.perf_counter()
        pace, fewest = self._scope.kinds.pace, self._scope.fewest_tokens
        aligned = (start // MOST_TOKENS + 1) * MOST_TOKENS
        stop = min(aligned if fewest == MOST_TOKENS else start + pace.tokens, len(chain))
        feed(model, self._tokens[start:stop].tolist(), self._prompt_cache)
        pace.took(stop - start, time.perf_counter() - began)
        self._position = stop
        self.computed += stop - start
        self._store.counters.add(prepared_tokens=stop - start)
        assert self._layout is not None
        committer.advance(self._layout, LiveExtent(stop, True))
        if self._is_deleted:
            self.reason = DELETED
        elif committer.done < chain.block_start(stop + 1):
            self.reason = reasons.NO_ROOM
        elif stop < len(chain) and pace.is_slow(fewest):
            self.reason = TOO_SLOW
        if stop == len(chain) or self.reason:
            self.close()

    def _end(self, reason: str = "") -> None:
        self.is_over = True
        self.reason = reason or self.reason
        self._committer = self._layout = None
        self._prompt_cache = []
        if self._pending is not None:
            self._pending.cancel()
        self._staging.release()
