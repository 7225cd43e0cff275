"""A sequence's blocks, handed to the tiers while mlx-lm's server computes it.

The server itself inserts a sequence where a part of a chat ends, and at its end. That is too late
for a prompt longer than the memory, and for one whose client disconnects.
"""

import logging
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

from omlx_cache.adapters.registry import extracted
from omlx_cache.commit.live import LiveExtent, Staging, extent_of
from omlx_cache.integrations.rows import BatchRow, paged_source, row_of
from omlx_cache.pages.layout import layout_of
from omlx_cache.scope import Scope
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, as_tokens
from omlx_cache_storage.page import PageId

_log = logging.getLogger(__name__)


class _Stored(NamedTuple):
    """The boundary up to which a sequence is stored, its key there, and the pages."""

    end: int = 0
    key: BlockKey = BlockKey(b"")
    pages: frozenset[PageId] = frozenset()


class Following:
    """Follows one sequence. Use it on the model's thread; no method raises or waits.

    Windows and recurrent state are kept every `snapshot_stride` tokens, as chunks end, and where
    the caller says so. `part` says which of a request's caches it follows, `began_ns` is the stamp
    of its pages. Mutable by that thread: `_kept`, the last such place, `_offered`, the boundary up
    to which a row's blocks were offered, `_stored` and `_closed`.
    """

    def __init__(
        self, scope: Scope, tokens: "Sequence[int] | Tokens", start: int, first: int = 0
    ) -> None:
        store = scope.store
        self._scope = scope
        self._trims = scope.trims
        self.part = slice(first, first + len(scope.fresh()))
        self._stride = store.settings.snapshot_stride
        self._staging = Staging(store.counters, store.snapshot_bytes)
        self._chain = scope.chain(as_tokens(tokens))
        self.began_ns = store.stamp()
        self._committer = scope.committer(
            self._chain, self._staging, start=start, stamp=self.began_ns
        )
        self._kept = start
        self._offered = 0
        self._closed = False
        self._stored = _Stored()

    def stored_of(self, chain: KeyChain) -> frozenset[PageId]:
        """Return the pages that were stored, if the chain goes on from them."""
        end, key, pages = self._stored
        return pages if 0 < end <= len(chain) and chain.key(end) == key else frozenset()

    def row(
        self, row: BatchRow, extract: Callable[[], Sequence[Any]], *, keep: bool = False
    ) -> None:
        """Store the blocks that a row of a batch has completed; with `keep` windows and recurrent
        state too. `extract` gives its caches."""
        if self._closed:
            return
        position = len(row.tokens)
        size = self._chain.block_size
        if not keep and position - max(self._committer.done, self._offered) < size:
            return
        # A block without room now is not tried again with every token.
        self._offered = position // size * size
        try:
            self._extend(row.tokens)
            source = paged_source(row, self._committer.done)
            if not self._trims and (keep or position - self._kept >= self._stride):
                self._keep(position)
                self._committer.advance(
                    layout_of(extracted(extract())), LiveExtent(position, True), source
                )
            elif source is not None and source.arrays:
                self._committer.store_blocks(source, position)
            self._note()
        except Exception:
            self._give_up()

    def caches(self, tokens: Sequence[int], caches: Sequence[Any], *, keep: bool) -> None:
        """Store the blocks that a request's caches, which hold exactly these tokens, have
        completed; with `keep` windows and recurrent state too."""
        if self._closed:
            return
        caches = caches[self.part]
        if self._scope.layout(caches) is None:
            # Packed on the way: from here on they are another kind, stored when they end.
            return self.close()
        try:
            self._extend(tokens)
            if keep or len(tokens) - self._kept >= self._stride:
                self._keep(len(tokens))
            layout = layout_of(caches)
            self._committer.advance(layout, extent_of(layout, len(tokens)))
            self._note()
        except Exception:
            self._give_up()

    def close(self) -> None:
        """Free the pages that were cut and not stored, and the tokens."""
        self._staging.release()
        if not self._closed:
            self._closed = True
            del self._chain, self._committer

    def _extend(self, tokens: Sequence[int]) -> None:
        known = len(self._chain)
        if len(tokens) > known:
            self._chain.extend(as_tokens(tokens[known:]))

    def _keep(self, position: int) -> None:
        if not self._trims:
            self._committer.want([position])
            self._kept = position

    def _note(self) -> None:
        end = self._committer.done // self._chain.block_size * self._chain.block_size
        if end:
            self._stored = _Stored(end, self._chain.key(end), self._committer.stored)

    def _give_up(self) -> None:
        _log.exception("the blocks of a sequence are stored at its end only")
        self.close()


class FollowedRows:
    """The rows of a batch that are stored while they are computed, by uid. `follow` begins with the
    tokens that a row has. Use it on the model's thread; no method raises."""

    def __init__(self, follow: Callable[[Sequence[int]], Following | None]) -> None:
        self._follow = follow
        self._followed: dict[Hashable, Following | None] = {}

    def store(self, generator: Any, uid: int, stops: Collection[int] = ()) -> None:
        """Store the blocks that a row has completed; at one of `stops` its windows and recurrent
        state too."""
        row = row_of(generator, uid)
        if row is None:
            return
        try:
            if uid not in self._followed:
                self._followed[uid] = self._follow(row.tokens)
        except Exception:
            _log.exception("a row is stored at its end only")
            self._followed[uid] = None
        following = self._followed[uid]
        if following is not None:
            following.row(
                row,
                lambda: generator.extract_cache([uid])[uid][0],
                keep=len(row.tokens) in stops,
            )

    def end(self, uid: Hashable) -> None:
        """Free a row's pages that were cut and not stored; its completed blocks stay."""
        following = self._followed.pop(uid, None)
        if following is not None:
            following.close()
