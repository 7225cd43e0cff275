"""Handing a sequence's pages to the tiers: while it is computed, and the last ones at its end.

`advance` never waits. The live cache still holds a page that the tiers reject, so it is tried again
at the next call. Windows and recurrent state move on: they are cut at the policy's stops and wait
in staging. `finish` may wait for the writer. Pages without room are then the deep end, dropped and
counted.
"""

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import NamedTuple, Protocol

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, STATE, GroupSpec, TokenRange
from omlx_cache.commit.admission import Admission, Planned
from omlx_cache.commit.live import LiveExtent, WindowTrail
from omlx_cache.pages.cut import Cutter, PageCut, Source, read_source
from omlx_cache.pages.layout import Layout
from omlx_cache.restore.pending import fallbacks
from omlx_cache_storage.calls import is_whole
from omlx_cache_storage.eviction.order import Ended
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId, PageMeta, Tail

RUN_PAGES = 64
"""How many pages are planned before the first of them is stored."""


class CommitResult(NamedTuple):
    """What a commit handed to the tiers: `pages` new ones of `nbytes` together.

    `tokens` is the position up to which the sequence was considered; `skipped` counts pages that
    were not stored, by reason. `promoted_pages` is 0: a restore takes pages of the disk into
    memory, a commit none.
    """

    tokens: int
    pages: int
    nbytes: int
    promoted_pages: int
    skipped: Mapping[str, int]

    @classmethod
    def none(cls, reason: str) -> "CommitResult":
        return cls(0, 0, 0, 0, {reason: 1})


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


class Committer:
    """One sequence's way into the tiers, root first. Use it on the model's thread.

    `start` tokens of `prompt_length` were restored, `local` of them from this machine. `stops` are
    the coming positions at which windows and recurrent state are wanted. The paged group is stored
    up to `done`. A page that a tier has is never written again; a paged one that was computed
    though the disk has it is cut again to have it in memory. Mutable: `done` and `stops`.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        groups: Sequence[GroupSpec],
        start: int = 0,
        local: int | None = None,
        prompt_length: int = 0,
        stops: Iterable[int] = (),
    ) -> None:
        self._admission = admission
        chain = self.chain = admission.chain
        self._groups = groups
        self._prompt_length = prompt_length
        self._start = start
        self.stops: list[int] = []
        self.want(stops)
        self._trail = WindowTrail(groups, admission.staging, start)
        # Blocks of another machine are stored here as if this one had computed them.
        self.done = chain.block_start((start if local is None else min(start, local)) + 1)

    @property
    def stored(self) -> frozenset[PageId]:
        return frozenset(self._admission.new)

    def want(self, stops: Iterable[int]) -> None:
        """Add stops that the sequence has not passed. Windows are kept at the prompt's end instead
        of one token before it, which they serve too."""
        wanted = sorted({*self.stops, *stops})
        del wanted[: bisect(wanted, self._start)]
        if wanted and STATE not in self._groups:
            wanted = sorted({*wanted, self._prompt_length} - {0, self._prompt_length - 1})
        self.stops = wanted

    def advance(self, layout: Layout, extent: LiveExtent, row: Source | None = None) -> None:
        """Store the complete blocks of a live cache, and windows and state of the stops that it has
        reached. Evaluates its copies; does not wait. `row` has the paged group's tokens from `done`
        on, when `layout` is costly to read."""
        end = extent.end
        due = self.stops[: bisect(self.stops, end)]
        if end + 1 == self._prompt_length and self._prompt_length in self.stops:
            # The last token is fed as the first of the answer: windows will have moved on.
            due.append(end)
        if due or self.chain.block_start(end + 1) > self.done:
            live = layout if row is None else row
            self.store_blocks(live, end)
            self._store_stops(layout, extent, due, live)
        if self._trail.groups and extent.exact and 0 < self._prompt_length <= end + 1:
            self._trail.follow(layout, end)

    def due_at(self, position: int) -> int:
        """Return the length at which `advance` has something to do next."""
        size = self.chain.block_size
        return min((position // size + 1) * size, self._trail.due_at(size))

    def finish(
        self, layout: Layout, extent: LiveExtent, ended: Ended | None = None
    ) -> CommitResult:
        """Store the remaining pages, order the chain for eviction by how the answer ended, and
        return the result of all stores. In sequences without restore points the end of the prompt
        gets a page of its own, so that the same prompt is found up to there."""
        end = extent.end
        # A request that ended within its prefill has no tokens missing from the cache.
        is_early = len(self.chain) == self._prompt_length and extent.overwritten <= end
        if not extent.exact or (end != len(self.chain) and not is_early):
            self._admission.skipped[reasons.POSITION] += 1
        if end == 0:
            return self._result(0)
        self._admission.finish(
            needed(self.chain, layout.groups, end),
            partial(fallbacks, self.chain, layout.groups, limit=end),
            ended,
        )
        # Pages that left the tiers since they were restored or stored are cut again.
        self.done = 0
        reached = True
        for page in self._admission.take_staged():
            # A window or a state is nothing without what lies before it: the deep end gives way.
            reached = reached and self.store_blocks(layout, page.meta.position)
            if reached:
                self._admission.add_made(page)
            else:
                self._admission.give_up([page.meta.id])
        if self.store_blocks(layout, end):
            due = sorted({*self.stops[: bisect(self.stops, end)], end})
            self._store_stops(layout, extent, due, layout)
            if (
                len(layout.groups) == 1
                and self._prompt_length <= end
                and self._prompt_length % self.chain.block_size
            ):
                self._store_paged(layout, [self._prompt_length])
        else:
            ends = range(self.done + self.chain.block_size, end + 1, self.chain.block_size)
            self._admission.give_up([*self._admission.lacking(ends)])
        if not self._admission.prepared:
            # The pages that replace them are stored.
            self._admission.tiers.demote(
                superseded(self.chain, end, self._admission.tiers.tails_of)
            )
        return self._result(end)

    def _result(self, end: int) -> CommitResult:
        stored = self._admission
        stored.budgets.sequence(end, lost=stored.skipped[reasons.NO_ROOM] > 0)
        # A plus leaves out what was counted as none.
        return CommitResult(end, stored.pages, stored.nbytes, 0, dict(+stored.skipped))

    def store_blocks(self, live: Layout | Source, end: int) -> bool:
        """Store the pages that wait in staging, and the complete blocks up to `end`; False when one
        of these had no room. A row has the paged group's tokens from `done` on."""
        for page in self._admission.take_staged():
            self._admission.add_made(page)
        size = self.chain.block_size
        ends = range(self.done + size, end + 1, size)
        if ends:
            self.done = self._store_paged(live, ends)
        return self.done + size > end

    def _store_paged(self, live: Layout | Source, ends: Sequence[int]) -> int:
        """Store the paged pages that end there, as far as the tiers lack them; return the boundary
        before the first without room."""
        lacking = self._admission.lacking(ends) if PAGED in self._groups else {}
        if not lacking:
            return ends[-1]
        source = read_source(live.groups[PAGED]) if isinstance(live, Layout) else live
        cutter = Cutter([source])
        run: list[Planned] = []
        left = deque(lacking.items())
        while left:
            page, end = left.popleft()
            start = self.chain.block_start(end)
            cut = cutter.tokens(TokenRange(start, end))
            if cut is None:
                self._admission.skipped[reasons.NOT_HELD] += 1
            else:
                run.append(self._planned(page, end, end - start, cut, source))
            # Pages that are stored together follow each other.
            is_followed = bool(left) and left[0][1] == end + self.chain.block_size
            if cut is not None and is_followed and len(run) < RUN_PAGES:
                continue
            stored = self._admission.add(cutter, run) if run else 0
            if stored < len(run):
                return self.chain.block_start(run[stored].meta.position)
            run = []
        return ends[-1]

    def _store_stops(
        self, layout: Layout, extent: LiveExtent, due: Sequence[int], live: Layout | Source
    ) -> None:
        for stop in due:
            missing = sum(
                not self._store_aging(layout, group, stop, extent)
                for group in layout.groups
                if group != PAGED
            )
            if not missing and stop % self.chain.block_size:
                self._store_paged(live, [stop])
            elif stop == extent.end:
                self._admission.skipped[reasons.NOT_HELD] += missing
        del self.stops[: bisect(self.stops, extent.end)]

    def _store_aging(self, layout: Layout, group: GroupSpec, stop: int, extent: LiveExtent) -> bool:
        """Store a window or a state; False when the live cache does not hold it."""
        exact = extent.exact and stop == extent.end
        if group.kind == "window":
            is_there = extent.overwritten <= group.window
            return is_there and self._store_window(layout, group, stop, exact)
        if not exact or extent.overwritten:
            return False
        page = PageId(self.chain.key(stop), group.name)
        if not self._admission.owns(page):
            source = read_source(layout.groups[group])
            cutter = Cutter([source])
            cut = cutter.whole()
            if cut.tensors:
                planned = self._planned(page, stop, 0, cut, source)
                self._admission.add(cutter, [planned], stage=True)
        return True

    def _store_window(self, layout: Layout, group: GroupSpec, stop: int, exact: bool) -> bool:
        live = read_source(layout.groups[group])
        cutter = Cutter([*self._trail.segments[group].values(), live])
        phase = live.extra if exact else ""
        first = group.needs(stop)[-1].start
        for end in reversed(group.page_ends(stop, self.chain.block_size)):
            block = TokenRange(window_start(self.chain, group, end), end)
            start = cutter.earliest(block)
            page = PageId(self.chain.key(end), group.name)
            if self._admission.owns(page, end - start):
                continue
            if start > (0 if end == group.keep else max(block.start, first)):
                return False
            cut = cutter.tokens(TokenRange(start, end)) if start < end else None
            if cut is not None:
                extra = phase if end == stop else self._trail.phases[group].get(end, "")
                planned = self._planned(page, end, end - start, cut, live._replace(extra=extra))
                self._admission.add(cutter, [planned], stage=True)
        return True

    def _planned(
        self, page: PageId, end: int, tokens: int, cut: PageCut, source: Source
    ) -> Planned:
        meta = PageMeta(
            namespace=self.chain.namespace,
            key=page.key,
            parent=self.chain.parent(end),
            group=page.group,
            position=end,
            held=tokens,
            tail=end % self.chain.block_size != 0,
            codec=source.codec,
            tensors=cut.tensors,
            extra=source.extra,
        )
        return Planned(meta, cut)


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
