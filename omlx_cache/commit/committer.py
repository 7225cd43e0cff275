"""What a finished sequence leaves behind: which pages are cut, in which order, from what."""

from collections import Counter
from collections.abc import Sequence

from omlx_cache import reasons
from omlx_cache.adapters.base import GroupSpec, TokenRange
from omlx_cache.codecs import CodecPolicy
from omlx_cache.commit.capture import page_meta, phases_of, snapshot_page
from omlx_cache.commit.progress import Extent
from omlx_cache.commit.staging import Staging
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.cut import Cutter, TensorCut, cut_tokens, earliest_held, read_source
from omlx_cache.pages.encoding import codec_text, codecs_for, encode_page, encoded_nbytes, live_tags
from omlx_cache.pages.layout import Layout
from omlx_cache.results import CommitResult
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageId, PageMeta


class Committer:
    """Cuts and stores the pages of one sequence, root first, within the hot tier's budget.

    A page that is in the hot tier already is not cut again; one that is on the disk only is taken
    into memory (it was just used), and not written again.
    """

    def __init__(
        self,
        store: BlockStore,
        namespace: Namespace,
        chain: KeyChain,
        layout: Layout,
        staging: Staging,
        policy: CodecPolicy,
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._chain = chain
        self._layout = layout
        self._staging = staging
        self._policy = policy
        self._tags = codec_text(live_tags(layout.leaves))
        self._keep: set[PageId] = set()
        self._skipped: Counter[str] = Counter()
        self._pages = 0
        self._nbytes = 0
        self._promoted = 0
        self._new: dict[PageId, int] = {}

    def run(self, prompt_length: int, extent: Extent) -> CommitResult:
        """Store what the live cache and the staged captures hold, and return what it was."""
        end, exact = extent.end, extent.exact
        if not exact or end != len(self._chain):
            self._skipped[reasons.POSITION] += 1
        if end == 0:
            return self._result(0)
        snapshots = self._staging.take_snapshots()
        has_state = any(group.kind == "state" for group in self._layout.groups)
        ends = self._ends(end, prompt_length, [p.meta.position for p in snapshots], has_state)
        self._keep = {
            PageId(self._chain.key(e), group.name) for group in self._layout.groups for e in ends
        }
        self._store.touch(self._needed(ends, end))
        for group in self._layout.groups:
            if group.kind == "paged":
                self._store_paged(group, ends)
            elif group.kind == "window":
                self._store_window(group, ends, extent)
            else:
                self._store_states(group, snapshots, extent)
        self._finish(ends, end)
        return self._result(end)

    def _ends(
        self, end: int, prompt_length: int, snapshots: Sequence[int], has_state: bool
    ) -> list[int]:
        """Return where pages end: at every boundary, at each restore point and at the end."""
        size = self._chain.block_size
        ends = {*range(size, end + 1, size), end, *snapshots}
        if not has_state and 0 < prompt_length <= end:
            ends.add(prompt_length)
        return sorted(e for e in ends if e <= end)

    def _store_paged(self, group: GroupSpec, ends: Sequence[int]) -> None:
        source = read_source(self._layout.of(group))
        extra = phases_of(self._layout, group)
        cutter: Cutter | None = None
        for end in ends:
            page = PageId(self._chain.key(end), group.name)
            if self._store.hot.info(page) is not None:
                continue
            span = TokenRange(self._chain.block_start(end), end)
            cuts = cut_tokens([source], span)
            if not cuts:
                self._skipped[reasons.NOT_HELD] += 1
                continue
            meta = self._meta(group, end, len(span), cuts, extra)
            cutter = cutter or Cutter([source])
            if not self._add(meta, cutter, cuts):
                break

    def _store_window(self, group: GroupSpec, ends: Sequence[int], extent: Extent) -> None:
        segments = self._staging.segments(group.name)
        sources = [segment.source for segment in segments]
        phases = {segment.stop: segment.phase for segment in segments}
        if extent.overwritten <= group.window:
            sources.append(read_source(self._layout.of(group)))
            if extent.exact:
                phases[extent.end] = phases_of(self._layout, group)
        cutter: Cutter | None = None
        for end in self._window_ends(group, ends):
            page = PageId(self._chain.key(end), group.name)
            block = TokenRange(self._window_start(group, end), end)
            start = earliest_held(sources, block)
            if end == group.keep and start > 0:
                self._skipped[reasons.NOT_HELD] += 1
                continue
            info = self._store.find(page)
            in_hot = self._store.hot.info(page)
            if in_hot is not None and in_hot.held >= end - start:
                continue
            if start == end or (info is not None and info.held > end - start):
                self._skipped[reasons.NOT_HELD] += info is None
                continue
            span = TokenRange(start, end)
            cuts = cut_tokens(sources, span)
            if not cuts:
                continue
            meta = self._meta(group, end, len(span), cuts, phases.get(end, ""))
            cutter = cutter or Cutter(sources)
            self._add(meta, cutter, cuts)

    def _window_start(self, group: GroupSpec, end: int) -> int:
        """Return the first token of a window page: of its block, only what a restore to the end,
        or to one token before it, can need."""
        first = end - (group.window - group.keep) - 1
        block = 0 if end == group.keep else self._chain.block_start(end)
        return block if first <= group.keep else max(block, first)

    def _window_ends(self, group: GroupSpec, ends: Sequence[int]) -> list[int]:
        """Return the ends, and the sinks' own page; the end of the sequence first."""
        wanted = set(ends)
        if 0 < group.keep < ends[-1]:
            wanted.add(group.keep)
        return sorted(wanted, reverse=True)

    def _store_states(self, group: GroupSpec, snapshots: Sequence[Page], extent: Extent) -> None:
        for page in snapshots:
            if self._store.hot.info(page.meta.id) is None:
                self._admit_state(page)
        if extent.exact and not extent.overwritten:
            page_id = PageId(self._chain.key(extent.end), group.name)
            if self._store.hot.info(page_id) is None:
                final = snapshot_page(self._layout, self._namespace, self._chain, group, extent.end)
                if final is not None:
                    self._admit_state(final)

    def _admit_state(self, page: Page) -> None:
        if self._store.admit(page.meta.nbytes, self._keep):
            self._put(page)
        else:
            self._skipped[reasons.NO_ROOM] += 1

    def _meta(
        self, group: GroupSpec, end: int, held: int, cuts: list[TensorCut], extra: str = ""
    ) -> PageMeta:
        return page_meta(
            self._namespace, self._chain, group, end, held, cuts, codec=self._tags, extra=extra
        )

    def _add(self, meta: PageMeta, cutter: Cutter, cuts: Sequence[TensorCut]) -> bool:
        """Cut, encode and store one page within the budget; False, counted, without room.

        The dense page lives no longer than its encoding. What is stored encoded already is not
        encoded again, as that could give other bits.
        """
        codecs = codecs_for(meta, self._policy) if self._policy.encodes(len(self._chain)) else {}
        if codecs and self._store.find(meta.id) is not None:
            return True
        nbytes = encoded_nbytes(meta, codecs)
        if not self._store.admit(nbytes, self._keep):
            self._skipped[reasons.NO_ROOM] += 1
            return False
        try:
            page = encode_page(Page(meta, cutter.payload(cuts)), codecs)
        except BaseException:
            self._store.hot.release(nbytes)
            raise
        if page.meta.nbytes != nbytes:
            self._store.hot.release(nbytes)
            if not self._store.admit(page.meta.nbytes, self._keep):
                self._skipped[reasons.NO_ROOM] += 1
                return False
        self._put(page)
        return True

    def _put(self, page: Page) -> None:
        if self._store.put(page):
            self._new[page.meta.id] = page.meta.position
            self._pages += 1
            self._nbytes += page.meta.nbytes
        else:
            self._promoted += 1

    def _finish(self, ends: Sequence[int], end: int) -> None:
        """Order the chain for eviction: what a restore to the end needs last; first of all tails
        of completed blocks, and new window pages that the window has left behind."""
        needed = self._needed(ends, end)
        idle = sorted(self._new.keys() - set(needed), key=lambda page: -self._new[page])
        self._store.arrange(needed)
        self._store.demote([page for page in idle if page.group.startswith("window")])
        self._store.demote(self._superseded(ends, end))

    def _needed(self, ends: Sequence[int], end: int) -> list[PageId]:
        """Return the pages that a restore to the end uses, root first."""
        found: list[tuple[int, PageId]] = []
        for group in self._layout.groups:
            spans = group.needs(end)
            own = self._window_ends(group, ends) if group.kind == "window" else ends
            for e in own:
                start = self._chain.block_start(e)
                overlaps = any(span.start < e and span.stop > start for span in spans)
                if overlaps or (group.kind == "state" and e == end):
                    found.append((e, PageId(self._chain.key(e), group.name)))
        return [page for _e, page in sorted(found, key=lambda item: item[0])]

    def _superseded(self, ends: Sequence[int], end: int) -> list[PageId]:
        """Return tails of this chain whose block is complete now, snapshots' tails excepted."""
        size = self._chain.block_size
        found = []
        for start in range(0, end - size + 1, size):
            parent = self._chain.namespace if start == 0 else self._chain.key(start)
            tails = self._store.tails(parent)
            kept = {tail.position for tail in tails if tail.group == "state"}
            for position, group in tails:
                if start < position < start + size and position not in kept:
                    found.append(PageId(self._chain.key(position), group))
        return found

    def _result(self, end: int) -> CommitResult:
        skipped = {reason: count for reason, count in self._skipped.items() if count}
        return CommitResult(end, self._pages, self._nbytes, self._promoted, skipped)
