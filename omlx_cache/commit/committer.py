"""Handing a sequence's pages to the tiers: while it is computed, and the last ones at its end.

`advance` never waits. The live cache still holds a page that the tiers reject, so it is tried again
at the next call. Windows and recurrent state move on: they are cut at the policy's stops and wait
in staging. `finish` may wait for the writer. Pages without room are then the deep end, dropped and
counted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, STATE, GroupSpec, TokenRange
from omlx_cache.arrays.mlxio import on_host
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.commit.admission import Admission, CommitResult
from omlx_cache.commit.budgets import Budgets
from omlx_cache.commit.points import WindowTrail, needed, superseded, window_start
from omlx_cache.commit.progress import LiveExtent
from omlx_cache.pages.cut import Cutter, PageCut, Source, read_source
from omlx_cache.pages.encoding import codecs_for, encode_run, encoded_nbytes, run_bytes
from omlx_cache.pages.layout import Layout
from omlx_cache.restore.walk import fallbacks
from omlx_cache_storage.eviction.order import Ended
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageId, PageMeta
from omlx_cache_storage.tiers import Tiers

RUN_PAGES = 64
"""How many pages are planned before the first of them is stored."""


class _Planned(NamedTuple):
    meta: PageMeta
    cut: PageCut


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
        chain: KeyChain,
        policy: CodecPolicy,
        budgets: Budgets,
        *,
        groups: Sequence[GroupSpec],
        start: int = 0,
        local: int | None = None,
        prompt_length: int = 0,
        stops: Iterable[int] = (),
    ) -> None:
        self._store = store
        self._admission = admission
        self.chain = chain
        self._policy = policy
        self._budgets = budgets
        self._groups = groups
        self._has_blocks = PAGED in groups
        self._prompt_length = prompt_length
        self._start = start
        self.stops: list[int] = []
        self.want(stops)
        self._trail = WindowTrail(
            [g for g in groups if g.kind == "window"], admission.staging, start
        )
        # Blocks of another machine are stored here as if this one had computed them.
        self.done = chain.block_start((start if local is None else min(start, local)) + 1)

    @property
    def stored(self) -> frozenset[PageId]:
        return frozenset(self._admission.new)

    def want(self, stops: Iterable[int]) -> None:
        """Add stops that the sequence has not passed. Windows are kept at the prompt's end instead
        of one token before it, which they serve too."""
        wanted = {*self.stops, *(s for s in stops if s > self._start)}
        if wanted and STATE not in self._groups:
            wanted -= {self._prompt_length - 1}
            wanted |= {self._prompt_length} - {0}
        self.stops = sorted(wanted)

    def advance(self, layout: Layout, extent: LiveExtent, row: Source | None = None) -> None:
        """Store the complete blocks of a live cache, and windows and state of the stops that it has
        reached. Evaluates its copies; does not wait. `row` has the paged group's tokens from `done`
        on, when `layout` is costly to read."""
        end = extent.end
        due = [stop for stop in self.stops if stop <= end]
        if end + 1 == self._prompt_length and self._prompt_length in self.stops:
            # The last token is fed as the first of the answer: windows will have moved on.
            due.append(end)
        if due or self.chain.block_start(end + 1) > self.done:
            self.store_blocks(layout if row is None else row, end)
            if due:
                self._store_stops(layout, extent, due, row)
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
            due = [stop for stop in self.stops if stop <= end]
            self._store_stops(layout, extent, sorted({*due, end}))
            if len(layout.groups) == 1 and 0 < self._prompt_length <= end:
                self._store_tail(layout, self._prompt_length)
        else:
            self._admission.give_up([self._page(PAGED, e) for e in self._unstored(end)])
        if not self._admission.prepared:
            # The pages that replace them are stored.
            self._store.demote(superseded(self.chain, end, self._store.tails_of))
        self._budgets.sequence(end, lost=self._admission.skipped[reasons.NO_ROOM] > 0)
        return self._admission.result(end)

    def _page(self, group: GroupSpec, end: int) -> PageId:
        return PageId(self.chain.key(end), group.name)

    def _unstored(self, end: int) -> list[int]:
        """Return the ends of the complete blocks up to `end` that are still to be stored; at the
        end of the sequence only of blocks that no tier has."""
        size = self.chain.block_size
        ends = list(range(self.done + size, end + 1, size))
        if not (self._has_blocks and self._admission.finishing):
            return ends
        found = self._store.find_all([self._page(PAGED, e) for e in ends], here=True)
        return [e for e, info in zip(ends, found, strict=True) if info is None]

    def store_blocks(self, live: Layout | Source, end: int) -> bool:
        """Store the pages that wait in staging, and the complete blocks up to `end`; False when one
        of these had no room. A row has the paged group's tokens from `done` on."""
        for page in self._admission.take_staged():
            self._admission.add_made(page)
        ends = self._unstored(end)
        if not (ends and self._has_blocks):
            self.done = max(self.done, self.chain.block_start(end + 1))
            return True
        self.done = self._store_paged(live, ends)
        return self.done >= ends[-1]

    def _store_paged(self, live: Layout | Source, ends: Sequence[int]) -> int:
        """Store paged pages; return the boundary before the first without room."""
        cutter = Cutter([read_source(live.groups[PAGED]) if isinstance(live, Layout) else live])
        for run in self._planned(cutter, ends):
            stored = self._add_run(cutter, run)
            if stored < len(run):
                return self.chain.block_start(run[stored].meta.position)
        return ends[-1]

    def _planned(self, cutter: Cutter, ends: Sequence[int]) -> Iterator[list[_Planned]]:
        """Yield the pages that `owned` lacks, as many in a row as are stored together."""
        run: list[_Planned] = []
        for end, is_owned in zip(
            ends, self._admission.owned([self._page(PAGED, end) for end in ends]), strict=True
        ):
            if is_owned:
                continue
            span = TokenRange(self.chain.block_start(end), end)
            cut = cutter.tokens(span)
            if cut is None:
                self._admission.skipped[reasons.NOT_HELD] += 1
                continue
            # Pages that are encoded together follow each other.
            if run and (len(run) == RUN_PAGES or run[-1].meta.position != span.start):
                yield run
                run = []
            run.append(_Planned(self._meta(PAGED, end, len(span), cut, cutter.sources[-1]), cut))
        if run:
            yield run

    def _add_run(self, cutter: Cutter, run: Sequence[_Planned]) -> int:
        """Store pages in order, several at once where possible; return how many until one had no
        room."""
        stored = 0
        codecs, nbytes = self._encoding(run[0].meta)

        def make(count: int) -> list[Page]:
            return _made(cutter, run[stored : stored + count], codecs)

        most = run_bytes() if codecs or not on_host() else 0
        metas = [planned.meta for planned in run]
        while added := self._admission.add_run(nbytes, metas[stored:], make, most=most):
            stored += added
        while stored < len(run) and self._add(cutter, run[stored]):
            stored += 1
        return stored

    def _store_stops(
        self, layout: Layout, extent: LiveExtent, due: Sequence[int], row: Source | None = None
    ) -> None:
        for stop in due:
            exact = extent.exact and stop == extent.end
            stored = [
                self._store_aging(layout, group, stop, extent, exact)
                for group in layout.groups
                if group != PAGED
            ]
            if all(stored):
                self._store_tail(layout if row is None else row, stop)
            elif stop == extent.end:
                self._admission.skipped[reasons.NOT_HELD] += stored.count(False)
        self.stops = [stop for stop in self.stops if stop > due[-1]]

    def _store_aging(
        self, layout: Layout, group: GroupSpec, stop: int, extent: LiveExtent, exact: bool
    ) -> bool:
        """Store a window or a state; False when the live cache does not hold it."""
        if group.kind == "window":
            is_there = extent.overwritten <= group.window
            return is_there and self._store_window(layout, group, stop, exact)
        return exact and not extent.overwritten and self._store_state(layout, group, stop)

    def _store_tail(self, live: Layout | Source, stop: int) -> None:
        if (
            self._has_blocks
            and stop % self.chain.block_size
            and not self._admission.owns(self._page(PAGED, stop))
        ):
            self._store_paged(live, [stop])

    def _store_window(self, layout: Layout, group: GroupSpec, stop: int, exact: bool) -> bool:
        live = read_source(layout.groups[group])
        cutter = Cutter([*self._trail.sources(group), live])
        phase = live.extra if exact else ""
        first = group.needs(stop)[-1].start
        for end in reversed(group.page_ends(stop, self.chain.block_size)):
            block = TokenRange(window_start(self.chain, group, end), end)
            start = cutter.earliest(block)
            if self._admission.owns(self._page(group, end), end - start):
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
            meta = self._meta(group, end, len(span), cut, live._replace(extra=extra))
            self._add(cutter, _Planned(meta, cut), stage=True)
        return True

    def _store_state(self, layout: Layout, group: GroupSpec, stop: int) -> bool:
        if self._admission.owns(self._page(group, stop)):
            return True
        cutter = Cutter([read_source(layout.groups[group])])
        cut = cutter.whole()
        if cut.tensors:
            meta = self._meta(group, stop, 0, cut, cutter.sources[-1])
            self._add(cutter, _Planned(meta, cut), stage=True)
        return True

    def _meta(
        self, group: GroupSpec, end: int, tokens: int, cut: PageCut, source: Source
    ) -> PageMeta:
        return PageMeta(
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

    def _add(self, cutter: Cutter, planned: _Planned, *, stage: bool = False) -> bool:
        """Cut, encode and store one page; False without room. A page that is stored encoded is not
        encoded again, as that could give other bits."""
        meta = planned.meta
        codecs, nbytes = self._encoding(meta)
        if codecs and self._admission.owns(meta.id):
            return True
        is_stored = self._admission.add(
            nbytes, meta, lambda: _made(cutter, [planned], codecs)[0], stage=stage
        )
        # A page that the disk has need not be in memory.
        return is_stored or (not stage and self._admission.owns(meta.id))

    def _encoding(self, meta: PageMeta) -> tuple[Mapping[str, Codec], int]:
        """Return what encodes a page, and its size then, which the budgets learn."""
        encodes = meta.held > 0 and self._policy.encodes(len(self.chain))
        codecs = codecs_for(meta, self._policy) if encodes else {}
        nbytes = encoded_nbytes(meta, codecs) if codecs else meta.nbytes
        self._budgets.page(meta.group, meta.held, nbytes)
        return codecs, nbytes


def _made(cutter: Cutter, part: Sequence[_Planned], codecs: Mapping[str, Codec]) -> list[Page]:
    if codecs:
        return encode_run(cutter, part, codecs)
    payloads = cutter.payloads([planned.cut for planned in part])
    return [Page(p.meta, payload) for p, payload in zip(part, payloads, strict=True)]
