"""Restore points: which positions of a prompt deserve one, for windows and recurrent state, which
pages a restore to the end of a chain uses, and which it has left behind. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from omlx_cache.adapters.base import PAGED, GroupSpec
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId, Tail


class SnapshotPolicy(Protocol):
    """Decides before a prefill; knows nothing of tiers. A stateless object."""

    def positions(self, *, start: int, stop: int, block_size: int, branch: int | None) -> list[int]:
        """Return ascending positions in (start, stop] to capture while [start, stop) is prefilled.

        `stop` is the prompt's length; `branch` is a boundary where a look-up found known blocks
        without a snapshot.
        """
        ...


@dataclass(frozen=True, slots=True)
class StridePolicy:
    """Every `stride` tokens, the last boundary, the branch point, and one token before the end.

    The N-1 position lets an exact repeat restore all but the token that must be computed. The
    branch point is kept because a second prompt reached it (after Marconi, arXiv 2411.19379).
    """

    stride: int

    def positions(self, *, start: int, stop: int, block_size: int, branch: int | None) -> list[int]:
        step = max(1, -(-self.stride // block_size)) * block_size
        last = (stop - 1) // block_size * block_size
        wanted = {*range(step, stop, step), last, stop - 1, branch or 0}
        return sorted(position for position in wanted if start < position < stop)


def window_start(chain: KeyChain, group: GroupSpec, end: int) -> int:
    """Return the first token of a window page: of its block, only what a restore to the page's
    end, or to one token before it, can need."""
    first = end - (group.window - group.keep) - 1
    block = 0 if end == group.keep else chain.block_start(end)
    return block if first <= group.keep else max(block, first)


def needed(chain: KeyChain, groups: Iterable[GroupSpec], end: int) -> list[PageId]:
    """Return the pages that a restore to `end` uses, root first."""
    size = chain.block_size
    ends = [(at, group.name) for group in groups for at in group.page_ends(end, size)]
    return [PageId(chain.key(at), name) for at, name in sorted(ends, key=lambda pair: pair[0])]


def superseded(
    chain: KeyChain, end: int, tails_of: Callable[[list[BlockKey]], set[Tail]]
) -> list[PageId]:
    """Return paged tails of this chain whose block is complete now, those of restore points
    excepted: windows and snapshots are restored where they were taken only."""
    size = chain.block_size
    found = []
    for start in range(0, end - size + 1, size):
        tails = tails_of([chain.key(start) if start else chain.namespace])
        kept = {tail.position for tail in tails if tail.group != PAGED.name}
        for position, group in tails:
            if start < position < start + size and position not in kept:
                found.append(PageId(chain.key(position), group))
    return found
