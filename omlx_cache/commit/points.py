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
        wanted = set(range(step, stop, step))
        wanted.add((stop - 1) // block_size * block_size)
        wanted.add(stop - 1)
        if branch is not None:
            wanted.add(branch)
        return sorted(position for position in wanted if start < position < stop)


def window_start(chain: KeyChain, group: GroupSpec, end: int) -> int:
    """Return the first token of a window page: of its block, only what a restore to the page's
    end, or to one token before it, can need."""
    first = end - (group.window - group.keep) - 1
    block = 0 if end == group.keep else chain.block_start(end)
    return block if first <= group.keep else max(block, first)


def needed(chain: KeyChain, groups: Iterable[GroupSpec], end: int) -> list[PageId]:
    """Return the pages that a restore to `end` uses, root first."""
    found: list[tuple[int, PageId]] = []
    for group in groups:
        ends = group.page_ends(end, chain.block_size)
        found += [(e, PageId(chain.key(e), group.name)) for e in ends]
    return [page for _end, page in sorted(found, key=lambda item: item[0])]


def superseded(
    chain: KeyChain, end: int, tails_of: Callable[[BlockKey], set[Tail]]
) -> list[PageId]:
    """Return paged tails of this chain whose block is complete now, those of restore points
    excepted: windows and snapshots are restored where they were taken only."""
    size = chain.block_size
    found = []
    for start in range(0, end - size + 1, size):
        parent = chain.namespace if start == 0 else chain.key(start)
        tails = tails_of(parent)
        if not tails:
            continue
        kept = {tail.position for tail in tails if tail.group != PAGED.name}
        for position, group in tails:
            if start < position < start + size and position not in kept:
                found.append(PageId(chain.key(position), group))
    return found
