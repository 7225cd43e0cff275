"""Restore points: the positions of a prompt that deserve one, the pages of one, the superseded
pages, and the tokens that windows need."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Protocol

from omlx_cache.adapters.base import PAGED, GroupSpec, TokenRange
from omlx_cache.commit.admission import Staging
from omlx_cache.pages.cut import Cutter, Source, read_source
from omlx_cache.pages.layout import Layout
from omlx_cache_storage.calls import is_whole
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId, Tail


class SnapshotPolicy(Protocol):
    """Decides before a prefill; knows nothing of tiers. A stateless object."""

    def positions(self, *, start: int, stop: int, block_size: int, branch: int | None) -> list[int]:
        """Return ascending positions in (start, stop] to capture while [start, stop) is prefilled.

        `stop` is the prompt's length; `branch` is a boundary where a lookup found known blocks
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

    def __post_init__(self) -> None:
        if not is_whole(self.stride) or self.stride < 1:
            raise TypeError(f"stride must be an integer of at least 1, got {self.stride!r}")

    def positions(self, *, start: int, stop: int, block_size: int, branch: int | None) -> list[int]:
        step = max(1, -(-self.stride // block_size)) * block_size
        last = (stop - 1) // block_size * block_size
        wanted = {*range(step, stop, step), last, stop - 1, branch or 0}
        return sorted(position for position in wanted if start < position < stop)


def window_start(chain: KeyChain, group: GroupSpec, end: int) -> int:
    """Return the first token of a window page: of its block only what a restore to the page's end,
    or one token before it, can need."""
    first = end - (group.window - group.keep) - 1
    block = 0 if end == group.keep else chain.block_start(end)
    return block if first <= group.keep else max(block, first)


def needed(chain: KeyChain, groups: Iterable[GroupSpec], end: int) -> list[PageId]:
    """Return the pages that a restore to `end` uses, root first."""
    ends: list[tuple[int, str]] = []
    for group in groups:
        ends += zip(group.page_ends(end, chain.block_size), repeat(group.name))
    return [PageId(chain.key(at), name) for at, name in sorted(ends)]


def superseded(
    chain: KeyChain, end: int, tails_of: Callable[[list[BlockKey]], set[Tail]]
) -> Iterator[PageId]:
    """Yield paged tails of this chain whose block is complete now, except the tails of restore
    points: windows and snapshots are restored only where they were taken."""
    blocks = end // chain.block_size
    paged, points = set[int](), set[int]()
    for position, group in tails_of(chain.boundaries(0, blocks - 1)) if blocks else ():
        (paged if group == PAGED.name else points).add(position)
    for position in sorted(paged - points):
        if position < blocks * chain.block_size and position % chain.block_size:
            yield PageId(chain.key(position), PAGED.name)


class Segment(NamedTuple):
    """Owned copies of some of a window group's tokens, the last of them before `stop`."""

    stop: int
    source: Source


class WindowTrail:
    """Copies each window's tokens once, in small segments, and keeps those of the last window, and
    the order that its rings had.

    After a single-token step a ring holds exactly its window. A restore to one token before the
    end, as of an exact repeat, needs one token more. Mutable by the model's thread: `_reached`,
    `_phases`, and `_segments`, the oldest first.
    """

    def __init__(self, groups: Sequence[GroupSpec], staging: Staging, start: int) -> None:
        self.groups = [group for group in groups if group.kind == "window"]
        self._staging = staging
        self._reached = start
        self._segments: dict[GroupSpec, list[Segment]] = defaultdict(list)
        self._phases: dict[GroupSpec, dict[int, str]] = defaultdict(dict)

    def due_at(self, block_size: int) -> int:
        """Return the position at which a window is about to lose tokens that were not copied."""
        strides = [max(1, min(block_size, group.window - group.keep)) for group in self.groups]
        return self._reached + min(strides, default=sys.maxsize)

    def follow(self, layout: Layout, position: int) -> None:
        """Copy what windows that are at `position` gained since the last call; evaluates that."""
        for group in self.groups:
            first = max(0, position - (group.window - group.keep) - 1)
            known, segments = self._segments[group], []
            for segment in known:
                if first < segment.stop <= position:
                    segments.append(segment)
                else:
                    self._staging.give_back(segment.source.nbytes)
            self._segments[group] = segments
            last = max(first, segments[-1].stop) if segments else first
            live = read_source(layout.groups[group])
            if position > last:
                self._copy(live, group, TokenRange(last, position))
            self._phases[group] = {
                **{at: p for at, p in self._phases[group].items() if first < at < position},
                position: live.extra,
            }
        self._reached = position

    def phase(self, group: GroupSpec, position: int) -> str:
        """Return the rings' order at a position, as a page carries it; "" where it was not seen."""
        return self._phases[group].get(position, "")

    def sources(self, group: GroupSpec) -> list[Source]:
        return [segment.source for segment in self._segments[group]]

    def _copy(self, live: Source, group: GroupSpec, span: TokenRange) -> None:
        cutter = Cutter([live])
        there = TokenRange(cutter.earliest(span), span.stop)
        cut = cutter.tokens(there) if len(there) else None
        if cut is None or not self._staging.reserve(cut.tensors.nbytes):
            return
        self._segments[group].append(Segment(there.stop, cutter.copies(there, cut)))
