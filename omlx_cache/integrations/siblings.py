"""Stored sequences that begin like a prompt: lets two share the beginning of a block.

Block keys say nothing about a block's first tokens. This memory of the process does, so that
two prompts that part inside a block still share what they have in common.
"""

from typing import NamedTuple

from omlx_cache.requests.explainer import Walked, compact
from omlx_cache.scope import Scope
from omlx_cache_storage.keys import KeyChain, Tokens, as_tokens, shared_length

SEQUENCES = 64
TOKENS = 1 << 20
"""Of all sequences together: 4 MiB."""


class Siblings:
    """The sequences that were stored last, bounded; one that continues another replaces it. One
    thread uses it."""

    def __init__(self) -> None:
        self._known: list[Tokens] = []

    def add(self, tokens: Tokens) -> None:
        """Remember a copy of a stored sequence."""
        known = [one for one in self._known if shared_length(one, tokens) < len(one)]
        self._known = [*known, compact(tokens)][-SEQUENCES:]
        while sum(map(len, self._known)) > TOKENS:
            del self._known[0]

    def nearest(self, tokens: Tokens) -> Tokens:
        """Return the sequence that shares most with a prompt; empty without one."""
        none = as_tokens([])
        return max(self._known, key=lambda known: shared_length(known, tokens), default=none)


class StoredPrefix(NamedTuple):
    """Where a prompt can be restored: up to `position` along a stored sequence's keys. `walked` is
    the look-up along its own, which missed a window or a state at `wanted_state`."""

    position: int
    chain: KeyChain
    reason: str | None
    walked: Walked
    wanted_state: int | None


def find_along(scope: Scope, siblings: Siblings, tokens: Tokens, limit: int) -> StoredPrefix:
    """Return the better of the prompt's own blocks and a sibling that parts inside one."""
    chain = scope.chain(tokens)
    own = scope.find(chain, limit)
    walked = scope.walked(chain, own.matched, own.lacking)
    found = StoredPrefix(own.position, chain, own.reason, walked, own.wanted_state)
    sibling = siblings.nearest(tokens)
    shared = min(shared_length(sibling, tokens), limit)
    if shared <= max(own.position, own.matched // chain.block_size * chain.block_size):
        return found
    other = scope.chain(as_tokens(sibling[: chain.block_start(shared) + chain.block_size]))
    reached = scope.find(other, shared)
    if reached.position <= own.position:
        return found
    return found._replace(position=reached.position, chain=other)
