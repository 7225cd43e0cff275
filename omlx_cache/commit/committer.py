"""Handing a sequence's pages to the tiers: while it is computed, and the rest at its end.

`advance` stores what is new and never waits: what the tiers cannot take now is tried again at
the next call, since the live cache still holds it. Windows and recurrent state move on, so they
are cut at the policy's stops and wait in staging. `finish` stores the rest, and may wait for the
writer; what still has no room is the deep end, dropped and counted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from omlx_cache import reasons
from omlx_cache.adapters.base import GroupSpec, TokenRange, paged_of
from omlx_cache.arrays.mlxio import on_host
from omlx_cache.codecs import Codec, CodecPolicy
from omlx_cache.commit.admission import Admission
from omlx_cache.commit.budgets import Budgets
from omlx_cache.commit.capture import page_meta, phases_of
from omlx_cache.commit.order import needed, superseded, window_start
from omlx_cache.commit.progress import Extent
from omlx_cache.commit.staging import Staging
from omlx_cache.commit.trail import WindowTrail
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.cut import Cutter
from omlx_cache.pages.encoding import codecs_for, encode_run, encoded_nbytes, run_bytes
from omlx_cache.pages.geometry import PageCut, Source, read_source
from omlx_cache.pages.layout import Layout
from omlx_cache.pages.tensors import DENSE, codec_text, live_tags
from omlx_cache.restore.fallbacks import fallbacks
from omlx_cache.results import CommitResult
from omlx_cache_storage.hints import Ended, Priority
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageId, PageMeta
from omlx_cache_storage.tiers import Tiers

RUN_PAGES = 64
"""How many pages are planned before the first of them is stored."""


class _Planned(NamedTuple):
    """A page to be made: what it says of itself, and where its bytes come from."""

    meta: PageMeta
    cut: PageCut


class Committer:
    """One sequence's way into the tiers, root first. Use it on the model's thread.

    `groups` are those of the sequence's caches. `start` tokens of `prompt_length` were restored,
    from the pages `own`, used at `stamp`: the whole chain shares one stamp, so that its deep end
    leaves before its root. `stops` are where windows and recurrent state are wanted. `finish` waits
    for the writer for `wait_seconds`, None for as long as it progresses. A page that a tier has is
    never written again, and cut again only to have it in memory: paged ones that were computed
    though the disk has them. `priority` and `since_ns` as for `Admission`.

    Mutable by that thread: `_done` (how far the paged group is stored), `_stops` (those to come),
    and `_row` (during a call).
    """

    def __init__(
        self,
        store: Tiers,
        namespace: Namespace,
        chain: KeyChain,
        staging: Staging,
        policy: CodecPolicy,
        *,
        groups: Sequence[GroupSpec],
        start: int = 0,
        kept: int | None = None,
        prompt_length: int = 0,
        own: Iterable[PageId] = (),
        stops: Iterable[int] = (),
        stamp: int | None = None,
        wait_seconds: float | None = 0.0,
        along: Iterable[PageId] = (),
        budgets: Budgets | None = None,
        priority: Priority = "normal",
        since_ns: int | None = None,
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._chain = chain
        self._policy = policy
        self._budgets = budgets
        self._admission = Admission(
            store,
            staging,
            own,
            stamp,
            wait_seconds,
            along,
            priority=priority,
            since_ns=since_ns,
        )
        self._groups = groups
        self._prompt_length = prompt_length
        self._start = start
        self._stops: list[int] = []
        self.want(stops)
        self._trail = WindowTrail([g for g in groups if g.kind == "window"], staging, start)
        # What came from another machine is to be had here as if it had been computed here.
        done = start if kept is None else min(start, kept)
        self._done = done // chain.block_size * chain.block_size
        self._row: Source | None = None

    @property
    def stored(self) -> frozenset[PageId]:
        """The pages that this committer stored, and those that were stored along."""
        return self._admission.stored

    @property
    def stops(self) -> list[int]:
        """Where windows and recurrent state are still wanted, ascending."""
        return list(self._stops)

    def want(self, stops: Iterable[int]) -> None:
        """Add stops; those that the sequence has passed are left out.

        Windows are kept at the prompt's end instead of one token before it, which they serve too.
        """
        wanted = {*self._stops, *(s for s in stops if s > self._start)}
        if not any(group.kind == "state" for group in self._groups) and wanted:
            wanted -= {self._prompt_length - 1}
            wanted |= {self._prompt_length} - {0}
        self._stops = sorted(wanted)

    def advance(self, layout: Layout, extent: Extent, row: Source | None = None) -> None:
        """Store the complete blocks of a live cache, and windows and state of the stops that it
        has reached. Evaluates what it copies; does not wait.

        `row` has the paged group's tokens from `done` on, when `layout` is costly to read.
        """
        end = extent.end
        due = [stop for stop in self._stops if stop <= end]
        if end + 1 == self._prompt_length and self._prompt_length in self._stops:
            # The last token is fed as the first of the answer: windows will have moved on.
            due.append(end)
        if due or end // self._chain.block_size * self._chain.block_size > self._done:
            self._row = row
            try:
                self._admission.add_staged()
                self._store_blocks(layout, end)
                if due:
                    self._store_stops(layout, extent, due)
            finally:
                # A later commit must not cut from it, and it refers to the batch's buffers.
                self._row = None
        if extent.exact and 0 < self._prompt_length <= end + 1:
            self._trail.follow(layout, end)

    def due_at(self, position: int) -> int:
        """Return the length at which `advance` has something to do for a sequence that grows from
        `position` on."""
        size = self._chain.block_size
        return min((position // size + 1) * size, self._trail.due_at(size))

    def advance_row(self, row: Source, end: int) -> None:
        """Store the complete blocks of one row of a batch; `row` has its tokens from `done` on."""
        group = paged_of(self._groups)
        if group is not None:
            self._admission.add_staged()
            size = self._chain.block_size
            ends = range(self._done + size, end + 1, size)
            self._done = self._store_paged(Cutter([row]), group, ends, "", DENSE)

    @property
    def done(self) -> int:
        """The boundary up to which complete blocks need not be offered again."""
        return self._done

    def finish(self, layout: Layout, extent: Extent, ended: Ended | None = None) -> CommitResult:
        """Store the rest, order the chain for eviction by how the answer ended, and return what was
        stored in all.

        The end of the prompt gets a page of its own in sequences without restore points, so that
        the same prompt is found up to there.
        """
        end = extent.end
        if not extent.exact or (end != len(self._chain) and not self._stopped_early(extent)):
            self._admission.skipped[reasons.POSITION] += 1
        if end == 0:
            return self._admission.result(0)
        self._admission.finish(
            needed(self._chain, layout.groups, end),
            lambda tier: fallbacks(self._chain, layout.groups, tier, end),
            ended,
        )
        # Whatever left the tiers since it was restored or stored is cut again.
        self._done = 0
        reached = True
        for page in self._admission.take_staged():
            # A window or a state is nothing without what lies before it: the deep end gives way.
            reached = reached and self._store_blocks(layout, page.meta.position)
            if reached:
                self._admission.add_made(page)
            else:
                self._admission.give_up([page.meta.id])
        if self._store_blocks(layout, end):
            due = [stop for stop in self._stops if stop <= end]
            self._store_stops(layout, extent, sorted({*due, end}))
            if len(layout.groups) == 1 and 0 < self._prompt_length <= end:
                self._store_tail(layout, self._prompt_length)
        else:
            self._admission.give_up(self._left_out(layout, end))
        self._store.demote(superseded(self._chain, end, self._store.tails))
        if self._budgets is not None:
            self._budgets.sequence(end, lost=self._admission.skipped[reasons.NO_ROOM] > 0)
        return self._admission.result(end)

    def _stopped_early(self, extent: Extent) -> bool:
        """True for a request that ended within its prefill, with all that was fed still there: the
        rest of its prompt is not missing from the cache."""
        return len(self._chain) == self._prompt_length and extent.overwritten <= extent.end

    def _left_out(self, layout: Layout, end: int) -> list[PageId]:
        """Return the paged pages up to `end` that no tier has."""
        group = paged_of(layout.groups)
        name = "" if group is None else group.name
        return [PageId(self._chain.key(e), name) for e in self._unstored(layout, end)]

    def _unstored(self, layout: Layout, end: int) -> list[int]:
        """Return where the complete blocks up to `end` end that are still to be stored; at the end
        of the sequence only those that no tier has."""
        size = self._chain.block_size
        ends = list(range(self._done + size, end + 1, size))
        group = paged_of(layout.groups)
        return [e for e in ends if self._missing(group, e)] if self._admission.finishing else ends

    def _store_blocks(self, layout: Layout, end: int) -> bool:
        """Store the complete blocks of the paged group up to `end`; False when one had no room."""
        group = paged_of(layout.groups)
        ends = self._unstored(layout, end)
        if not ends or group is None:
            self._done = max(self._done, self._chain.block_start(end + 1))
            return True
        self._done = self._store_paged_of(layout, group, ends)
        return self._done >= ends[-1]

    def _store_paged_of(self, layout: Layout, group: GroupSpec, ends: Sequence[int]) -> int:
        if self._row is not None:
            return self._store_paged(Cutter([self._row]), group, ends, "", DENSE)
        leaves = layout.of(group)
        tags = codec_text(live_tags(leaves))
        cutter = Cutter([read_source(leaves)])
        return self._store_paged(cutter, group, ends, phases_of(layout, group), tags)

    def _missing(self, group: GroupSpec | None, end: int) -> bool:
        return group is not None and (
            not self._admission.has(PageId(self._chain.key(end), group.name))
        )

    def _store_paged(
        self, cutter: Cutter, group: GroupSpec, ends: Sequence[int], extra: str, tags: str
    ) -> int:
        """Store paged pages in order, and return the boundary before the first without room."""
        for run in self._planned(cutter, group, ends, extra, tags):
            stored = self._add_run(cutter, run)
            if stored < len(run):
                return self._chain.block_start(run[stored].meta.position)
        return ends[-1] if ends else self._done

    def _planned(
        self, cutter: Cutter, group: GroupSpec, ends: Iterable[int], extra: str, tags: str
    ) -> Iterator[list[_Planned]]:
        """Yield the pages that no tier has, as many in a row as are stored together; before the end
        those too that only the disk has."""
        run: list[_Planned] = []
        for end in ends:
            if run and run[-1].meta.position != self._chain.block_start(end):
                # Those between are stored: what is encoded together lies behind each other.
                yield run
                run = []
            if self._admission.holds(PageId(self._chain.key(end), group.name)):
                cut = None
            else:
                span = TokenRange(self._chain.block_start(end), end)
                cut = cutter.geometry.tokens(span)
                if cut is None:
                    self._admission.skipped[reasons.NOT_HELD] += 1
                else:
                    meta = self._meta(group, end, len(span), cut, extra, tags)
                    run.append(_Planned(meta, cut))
            if run and (cut is None or len(run) == RUN_PAGES):
                yield run
                run = []
        if run:
            yield run

    def _add_run(self, cutter: Cutter, run: Sequence[_Planned]) -> int:
        """Store pages in order, several at once where nothing hinders that; return how many until
        one had no room."""
        stored = 0
        codecs = self._codecs(run[0].meta)
        nbytes = encoded_nbytes(run[0].meta, codecs)
        self._note(run[0].meta, nbytes)

        def make(count: int) -> list[Page]:
            part = run[stored : stored + count]
            if codecs:
                return encode_run(cutter, part, codecs)
            payloads = cutter.payloads([planned.cut for planned in part])
            return [Page(p.meta, payload) for p, payload in zip(part, payloads, strict=True)]

        most = run_bytes() if codecs or not on_host() else 0
        metas = [planned.meta for planned in run]
        while added := self._admission.add_run(nbytes, metas[stored:], make, most=most):
            stored += added
        for meta, cut in run[stored:]:
            if not self._add(meta, cutter, cut):
                return stored
            stored += 1
        return stored

    def _store_stops(self, layout: Layout, extent: Extent, due: Sequence[int]) -> None:
        """Store windows, state and the tails that belong to them, at each stop in turn."""
        for stop in due:
            exact = extent.exact and stop == extent.end
            held = [
                self._store_aging(layout, group, stop, extent, exact)
                for group in layout.groups
                if group.kind != "paged"
            ]
            if all(held):
                self._store_tail(layout, stop)
            elif stop == extent.end:
                self._admission.skipped[reasons.NOT_HELD] += held.count(False)
        self._stops = [stop for stop in self._stops if stop > due[-1]]

    def _store_aging(
        self, layout: Layout, group: GroupSpec, stop: int, extent: Extent, exact: bool
    ) -> bool:
        """Store a window or a state at a stop; False when the live cache does not hold it."""
        if group.kind == "window":
            if extent.overwritten > group.window:
                return False
            return self._store_window(layout, group, stop, exact)
        return exact and not extent.overwritten and self._store_state(layout, group, stop)

    def _store_tail(self, layout: Layout, stop: int) -> None:
        group = paged_of(layout.groups)
        if group is None or stop % self._chain.block_size == 0 or not self._missing(group, stop):
            return
        self._store_paged_of(layout, group, [stop])

    def _store_window(self, layout: Layout, group: GroupSpec, stop: int, exact: bool) -> bool:
        leaves = layout.of(group)
        tags = codec_text(live_tags(leaves))
        cutter = Cutter([*self._trail.sources(group), read_source(leaves)])
        phase = phases_of(layout, group) if exact else ""
        first = group.needs(stop)[-1].start
        for end in reversed(group.page_ends(stop, self._chain.block_size)):
            page = PageId(self._chain.key(end), group.name)
            block = TokenRange(window_start(self._chain, group, end), end)
            start = cutter.geometry.earliest(block)
            if self._admission.owns(page, end - start):
                continue
            wanted = TokenRange(0 if end == group.keep else max(block.start, first), end)
            if start > wanted.start and len(wanted) > 0:
                return False
            if start == end:
                continue
            span = TokenRange(start, end)
            cut = cutter.geometry.tokens(span)
            if cut is None:
                return False
            extra = phase if end == stop else self._trail.phase(group, end)
            meta = self._meta(group, end, len(span), cut, extra, tags)
            self._add(meta, cutter, cut, stage=True)
        return True

    def _store_state(self, layout: Layout, group: GroupSpec, stop: int) -> bool:
        page = PageId(self._chain.key(stop), group.name)
        if self._admission.owns(page):
            return True
        cutter = Cutter([read_source(layout.of(group))])
        cut = cutter.geometry.whole()
        if cut.tensors:
            meta = self._meta(group, stop, 0, cut, "", DENSE)
            self._add(meta, cutter, cut, stage=True)
        return True

    def _meta(
        self, group: GroupSpec, end: int, held: int, cut: PageCut, extra: str, tags: str
    ) -> PageMeta:
        return page_meta(
            self._namespace, self._chain, group, end, held, cut.tensors, codec=tags, extra=extra
        )

    def _add(self, meta: PageMeta, cutter: Cutter, cut: PageCut, *, stage: bool = False) -> bool:
        """Cut, encode and store one page; False without room.

        What is stored encoded already is not encoded again, as that could give other bits.
        """
        codecs = self._codecs(meta)
        if codecs and self._admission.has(meta.id):
            return True

        def make() -> Page:
            if codecs:
                return encode_run(cutter, [(meta, cut)], codecs)[0]
            return Page(meta, cutter.payloads([cut])[0])

        nbytes = encoded_nbytes(meta, codecs)
        self._note(meta, nbytes)
        if self._admission.add(nbytes, meta.position, make, stage=stage):
            return True
        # What the disk has need not be in memory.
        return not stage and self._admission.owns(meta.id)

    def _codecs(self, meta: PageMeta) -> Mapping[str, Codec]:
        encodes = meta.held > 0 and self._policy.encodes(len(self._chain))
        return codecs_for(meta, self._policy) if encodes else {}

    def _note(self, meta: PageMeta, nbytes: int) -> None:
        if self._budgets is not None:
            kind = next(group.kind for group in self._groups if group.name == meta.group)
            self._budgets.page(kind, meta.held, nbytes)
