"""Handing a sequence's pages to the tiers: while it is computed, and the last ones at its end.

`advance` never waits. The live cache still holds a page that the tiers reject, so it is tried again
at the next call. Windows and recurrent state move on: they are cut at the policy's stops and wait
in staging. `finish` may wait for the writer. Pages without room are then the deep end, dropped and
counted.
"""

from bisect import bisect
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, STATE, GroupSpec, TokenRange
from omlx_cache.commit.admission import Admission, CommitResult, Planned
from omlx_cache.commit.points import WindowTrail, needed, superseded, window_start
from omlx_cache.commit.progress import LiveExtent
from omlx_cache.pages.cut import Cutter, PageCut, Source, read_source
from omlx_cache.pages.layout import Layout
from omlx_cache.restore.pending import fallbacks
from omlx_cache_storage.eviction.order import Ended
from omlx_cache_storage.page import PageId, PageMeta
from omlx_cache_storage.tiers import Tiers

RUN_PAGES = 64
"""How many pages are planned before the first of them is stored."""


class Committer:
    """One sequence's way into the tiers, root first. Use it on the model's thread.

    `start` tokens of `prompt_length` were restored, `local` of them from this machine. `stops` are
    the coming positions at which windows and recurrent state are wanted. The paged group is stored
    up to `done`. A page that a tier has is never written again; a paged one that was computed
    though the disk has it is cut again to have it in memory. Mutable: `done` and `stops`.
    """

    def __init__(
        self,
        store: Tiers,
        admission: Admission,
        *,
        groups: Sequence[GroupSpec],
        start: int = 0,
        local: int | None = None,
        prompt_length: int = 0,
        stops: Iterable[int] = (),
    ) -> None:
        self._store = store
        self._admission = admission
        chain = self.chain = admission.chain
        self._groups = groups
        self._has_blocks = PAGED in groups
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
            return self._admission.result(0)
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
            if len(layout.groups) == 1 and 0 < self._prompt_length <= end:
                self._store_paged(layout, [self._prompt_length])
        else:
            size = self.chain.block_size
            ends = range(self.done + size, end + 1, size)
            self._admission.give_up([*self._admission.lacking(ends)])
        if not self._admission.prepared:
            # The pages that replace them are stored.
            self._store.demote(superseded(self.chain, end, self._store.tails_of))
        return self._admission.result(end)

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
        lacking = self._admission.lacking(ends) if self._has_blocks else {}
        if not lacking:
            return ends[-1]
        source = read_source(live.groups[PAGED]) if isinstance(live, Layout) else live
        cutter = Cutter([source])
        run: list[Planned] = []
        left = deque(lacking.values())
        while left:
            end = left.popleft()
            start = self.chain.block_start(end)
            cut = cutter.tokens(TokenRange(start, end))
            if cut is None:
                self._admission.skipped[reasons.NOT_HELD] += 1
            else:
                run.append(self._planned(PAGED, end, end - start, cut, source))
            # Pages that are stored together follow each other.
            is_followed = bool(left) and left[0] == end + self.chain.block_size
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
            missing = 0
            for group in layout.groups:
                if group != PAGED and not self._store_aging(layout, group, stop, extent):
                    missing += 1
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
        return exact and not extent.overwritten and self._store_state(layout, group, stop)

    def _store_window(self, layout: Layout, group: GroupSpec, stop: int, exact: bool) -> bool:
        live = read_source(layout.groups[group])
        cutter = Cutter([*self._trail.sources(group), live])
        phase = live.extra if exact else ""
        first = group.needs(stop)[-1].start
        for end in reversed(group.page_ends(stop, self.chain.block_size)):
            block = TokenRange(window_start(self.chain, group, end), end)
            start = cutter.earliest(block)
            if self._admission.owns(PageId(self.chain.key(end), group.name), end - start):
                continue
            wanted = TokenRange(0 if end == group.keep else max(block.start, first), end)
            if start > wanted.start and len(wanted) > 0:
                return False
            if start == end:
                continue
            span = TokenRange(start, end)
            cut = cutter.tokens(span)
            if cut is None:
                return False
            extra = phase if end == stop else self._trail.phase(group, end)
            planned = self._planned(group, end, len(span), cut, live._replace(extra=extra))
            self._admission.add(cutter, [planned], stage=True)
        return True

    def _store_state(self, layout: Layout, group: GroupSpec, stop: int) -> bool:
        if self._admission.owns(PageId(self.chain.key(stop), group.name)):
            return True
        source = read_source(layout.groups[group])
        cutter = Cutter([source])
        cut = cutter.whole()
        if cut.tensors:
            planned = self._planned(group, stop, 0, cut, source)
            self._admission.add(cutter, [planned], stage=True)
        return True

    def _planned(
        self, group: GroupSpec, end: int, tokens: int, cut: PageCut, source: Source
    ) -> Planned:
        meta = PageMeta(
            namespace=self.chain.namespace,
            key=self.chain.key(end),
            parent=self.chain.parent(end),
            group=group.name,
            position=end,
            held=tokens,
            tail=end % self.chain.block_size != 0,
            codec=source.codec,
            tensors=cut.tensors,
            extra=source.extra,
        )
        return Planned(meta, cut)
