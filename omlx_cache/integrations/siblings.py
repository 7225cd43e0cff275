"""Which blocks follow a boundary: lets two sequences share the beginning of a block.

Block keys say nothing about a block's first tokens. This memory of the process does, so that
two prompts that part inside a block still share what they have in common.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from omlx_cache.requests.explainer import Walked, compact
from omlx_cache.scope import Scope
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, as_tokens, shared_length

BLOCKS = 4_096
"""4 MiB at 256 tokens a block, a million tokens."""
SIBLINGS = 32


class _TokenBytes(NamedTuple):
    """The tokens of a block as bytes: of four each, where those of its sequence fit."""

    kind: str
    tokens: bytes


class Sibling(NamedTuple):
    """A stored sequence that begins like the one asked for: `shared` tokens are equal."""

    tokens: Tokens
    shared: int


class SiblingIndex:
    """Bounded; the least recently used boundaries and blocks are forgotten. One thread uses it."""

    def __init__(self, blocks: int = BLOCKS, siblings: int = SIBLINGS) -> None:
        self._limit = blocks
        self._siblings = siblings
        self._count = 0
        self._blocks: OrderedDict[BlockKey, OrderedDict[_TokenBytes, None]] = OrderedDict()

    def __len__(self) -> int:
        """Blocks that are remembered."""
        return self._count

    def add(self, chain: KeyChain, stop: int) -> None:
        """Note the blocks of a sequence's first `stop` tokens, the partial last one included."""
        tokens = compact(chain.tokens[:stop])
        for start in range(0, stop, chain.block_size):
            block = tokens[start : start + chain.block_size].tobytes()
            self._note(_boundary(chain, start), _TokenBytes(tokens.dtype.str, block))
        while self._count > self._limit:
            _parent, forgotten = self._blocks.popitem(last=False)
            self._count -= len(forgotten)

    def _note(self, parent: BlockKey, block: _TokenBytes) -> None:
        known = self._blocks.setdefault(parent, OrderedDict())
        self._blocks.move_to_end(parent)
        self._count += block not in known
        known[block] = None
        known.move_to_end(block)
        if len(known) > self._siblings:
            known.popitem(last=False)
            self._count -= 1

    def longest(self, chain: KeyChain, boundary: int) -> Sibling | None:
        """Return the sequence that shares most of the block after a boundary; None without one."""
        known = self._blocks.get(_boundary(chain, boundary))
        if not known:
            return None
        wanted = chain.tokens[boundary : boundary + chain.block_size]
        best: tuple[int, Tokens] | None = None
        for block in known:
            tokens = as_tokens(np.frombuffer(block.tokens, dtype=block.kind))
            shared = shared_length(wanted, tokens)
            if shared and (best is None or (shared, len(tokens)) > (best[0], len(best[1]))):
                best = shared, tokens
        if best is None:
            return None
        return Sibling(np.concatenate([chain.tokens[:boundary], best[1]]), boundary + best[0])


def _boundary(chain: KeyChain, position: int) -> BlockKey:
    return chain.key(position) if position else chain.namespace


class StoredPrefix(NamedTuple):
    """Where a prompt can be restored: up to `position` along a stored sequence's keys. `walked` is
    the look-up along its own."""

    position: int
    chain: KeyChain
    reason: str | None
    walked: Walked


def find_along(scope: Scope, siblings: SiblingIndex, tokens: Tokens, limit: int) -> StoredPrefix:
    """Return the better of the prompt's own blocks and a sibling that parts inside one."""
    chain = scope.chain(tokens)
    own = scope.find(chain, limit)
    walked = scope.walked(chain, own.matched, own.lacking)
    found = StoredPrefix(own.position, chain, own.reason, walked)
    boundary = own.matched // chain.block_size * chain.block_size
    if boundary >= limit:
        return found
    sibling = siblings.longest(chain, boundary)
    if sibling is None or min(sibling.shared, limit) <= own.position:
        return found
    assert np.array_equal(sibling.tokens[: sibling.shared], tokens[: sibling.shared])
    other = scope.chain(sibling.tokens)
    reached = scope.find(other, min(sibling.shared, limit))
    if reached.position <= own.position:
        return found
    return StoredPrefix(reached.position, other, own.reason, walked)
