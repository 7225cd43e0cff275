"""Boundaries that earlier commits passed, for layouts without a paged group.

Layouts with one need no memory of their own: the pages are it.
"""

from collections import OrderedDict

from omlx_cache_storage.keys import BlockKey, KeyChain

KNOWN_BOUNDARIES = 65_536


class Boundaries:
    """Bounded: the oldest are forgotten. One thread uses it."""

    def __init__(self) -> None:
        self._known: OrderedDict[BlockKey, None] = OrderedDict()

    def of(self, chain: KeyChain) -> frozenset[int]:
        """Return the boundaries of a chain that are known."""
        if not self._known:
            return frozenset()
        ends = range(chain.block_size, len(chain) + 1, chain.block_size)
        return frozenset(end for end in ends if chain.key(end) in self._known)

    def remember(self, chain: KeyChain, position: int) -> None:
        """Note the boundaries up to a position."""
        for end in range(chain.block_size, position + 1, chain.block_size):
            self._known[chain.key(end)] = None
            self._known.move_to_end(chain.key(end))
        while len(self._known) > KNOWN_BOUNDARIES:
            self._known.popitem(last=False)

    def clear(self) -> None:
        self._known.clear()
