"""Where a prefix can be restored: the pages on a token sequence's own chain are collected, then
positions are tried from the longest down. A gate rejects reads that take clearly longer than
computing. Reads no payload."""

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain as joined
from itertools import repeat
from math import inf
from operator import attrgetter
from typing import NamedTuple, Protocol

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, STATE, GroupSpec
from omlx_cache.settings.sizes import duration
from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.measures import WorkMeter
from omlx_cache_storage.page import COLD, REMOTE, PageId, PageInfo, Tail
from omlx_cache_storage.remote.lookups import Inquiry
from omlx_cache_storage.tiers import Tiers

STRIDE = 16
"""Paged blocks that are looked for at a time, at first; then twice as many each time."""
CLEARLY = 1.25
"""Computing must be so many times faster: it takes the device from other requests."""
LEAST_SECONDS = 0.05
"""Seconds of a difference that no user would notice: no reason to compute."""
PROBE_EVERY = 8
"""One in so many restores that would be rejected reads all the same: the link may be free."""
READS = 3
"""The fastest of the latest reads counts, and fewer are no evidence: one may have been slow."""
REMEMBERED = 16
LARGER = 4
"""A read says nothing of one that is more than so many times as large: opening files takes time."""


class Pages(Protocol):
    """Where pages lie: in a store, a tier, or a restore's memory. Reads nothing. `tails_of` names
    the pages that may end inside the blocks after boundaries."""

    def find_all(self, pages: Sequence[PageId]) -> Sequence[PageInfo | None]: ...
    def tails_of(self, parents: Sequence[BlockKey]) -> Collection[Tail]: ...


class PageUse(NamedTuple):
    page: PageId
    info: PageInfo


class RestorePoint(NamedTuple):
    """The longest restorable prefix: `position` tokens from `uses`, root first per group. `reason`
    is None when nothing was left to restore. `matched` leading tokens are known, restorable or not.
    `wanted_state` is where windows or a snapshot of the kind `lacking` were missed."""

    position: int
    uses: Mapping[GroupSpec, tuple[PageUse, ...]]
    reason: str | None
    matched: int
    wanted_state: int | None = None
    lacking: str = ""

    @property
    def all_uses(self) -> Iterator[PageUse]:
        return joined.from_iterable(self.uses.values())

    @property
    def root_first(self) -> list[PageId]:
        return list(map(attrgetter("page"), sorted(self.all_uses, key=attrgetter("info.position"))))

    def bytes_to_read(self) -> Counter[str]:
        nbytes: Counter[str] = Counter()
        for _, info in self.all_uses:
            if not info.in_memory:
                nbytes[info.tier] += info.nbytes
        return nbytes


class ReadingGate:
    """Compares reading with computing, by the latest of both; unknown rates reject nothing. Any
    thread may call; nothing blocks or raises. `_lock` guards `_reads` (bytes and seconds of the
    latest, by tier) and `_rejected` (restores since the latest probe)."""

    def __init__(self, work: WorkMeter) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._reads: dict[str, deque[tuple[int, float]]] = {
            tier: deque(maxlen=REMEMBERED) for tier in (COLD, REMOTE)
        }
        self._rejected = 0

    @uninterrupted
    def note(self, nbytes: int, seconds: float, read: Mapping[str, int]) -> None:
        """Note a restore of `nbytes`, of which tiers gave `read`: it tells of a tier that gave
        half."""
        with self._lock:
            for tier, size in read.items():
                if 2 * size >= nbytes > 0 and seconds > 0:
                    self._reads[tier].append((size, seconds))

    @uninterrupted
    def probe(self) -> bool:
        """Note a rejection; return whether it reads in spite of that."""
        with self._lock:
            self._rejected = (self._rejected + 1) % PROBE_EVERY
            return self._rejected == 0

    @uninterrupted
    def slower(self, model: str, tokens: int, nbytes: Mapping[str, int]) -> str:
        """Return the miss reason if reading so many bytes of each tier takes clearly longer than
        computing so many tokens, else ""."""
        rate = self._work.rate(model)
        if rate is None:
            return ""
        computing, reading = tokens / rate, 0.0
        for tier, size in nbytes.items():
            with self._lock:
                telling = [took / n for n, took in self._reads[tier] if n * LARGER >= size]
            if len(telling) < READS:
                return ""
            reading += size * min(telling[-READS:])
        if reading < CLEARLY * computing or reading - computing < LEAST_SECONDS:
            return ""
        return (
            f"{reasons.SLOWER_THAN_COMPUTING}:{tokens:,} tokens, about "
            f"{duration(reading)} to read and {duration(computing)} to compute"
        )


class RestoreGate:
    """Answers for one restore, as often as it looks; any thread may call. Without `probes` it is no
    probe, for a lookup that restores nothing. `_probing` is decided for good when it would be
    rejected first."""

    def __init__(self, gate: ReadingGate, model: str, *, probes: bool = True) -> None:
        self.shared = gate
        self._model = model
        self._probes = probes
        self._probing: bool | None = None

    def rejects(self, tokens: int, nbytes: Mapping[str, int]) -> str:
        """Return why so many bytes of each tier are not read for so many tokens; "" to read."""
        reason = "" if self._probing else self.shared.slower(self._model, tokens, nbytes)
        if reason and self._probes and self._probing is None:
            self._probing = self.shared.probe()
        return "" if self._probing else reason


class GroupPages:
    """The `pages` of one group, by end position, indexed so that a cover is judged in O(1): `_gap`
    leads over whole blocks. A page that ends inside a block can cover only the last block of a
    span, and one that begins inside it only the first. `reach` leading tokens have pages.

    Its constructor is linear in `length`, up to where positions are asked for.
    """

    def __init__(
        self, group: GroupSpec, block_size: int, pages: Mapping[int, PageUse], length: int
    ) -> None:
        self.group = group
        self.pages = pages
        self._size = block_size
        self._inside: dict[int, list[int]] = {}
        gap = length // block_size
        self._gap = [gap] * (gap + 1)
        for block in range(gap - 1, -1, -1):
            found = pages.get(block * block_size + block_size)
            if found is None or found.info.held < block_size:
                gap = block
            self._gap[block] = gap
        for end in sorted(pages):
            if end % block_size:
                self._inside.setdefault(end // block_size, []).append(end)
        self.reach = max(self._inside.get(gap, [gap * block_size]))

    def covers(self, position: int) -> list[Sequence[int]] | None:
        """Return the ends of the pages that rebuild the group; None where one is missing."""
        size, pages = self._size, self.pages
        if self.group.kind == "state":
            return [[position]] if position in pages else None
        parts: list[Sequence[int]] = []
        for start, last in self.group.needs(position):
            # One page may reach further back than its block: the sinks of a window.
            enough = last - pages[last].info.held if last in pages else last
            while start < min(last, enough):
                block = start // size
                gap = min(self._gap[block], last // size) * size
                if start % size == 0 and gap > start:
                    parts.append(range(start + size, gap + 1, size))
                    start = gap
                    continue
                stop = min(last, block * size + size)
                for end in (stop, block * size + size, *self._inside.get(block, ())):
                    if end in pages and end - pages[end].info.held <= start and end >= stop:
                        parts.append([end])
                        break
                else:
                    return None
                start = stop
            if enough < last:
                parts.append([last])
        return parts


class Collected:
    """The pages of a chain up to the first gap in the paged group, but for `bad` ones, by group;
    and where its `absent` pages would end. `matched` leading tokens are known, `top` of them may be
    restored, and at most `position` can be."""

    def __init__(
        self,
        chain: KeyChain,
        groups: Collection[GroupSpec],
        view: Pages,
        bad: Collection[PageId] = (),
        *,
        limit: int,
        known: frozenset[int] = frozenset(),
    ) -> None:
        self.absent: dict[PageId, int] = {}
        pages: dict[str, dict[int, PageUse]] = {group.name: {} for group in groups}
        size, blocks = chain.block_size, len(chain) // chain.block_size

        def note(group: str, ends: Sequence[int], keys: Sequence[BlockKey]) -> int:
            ids, there = list(map(PageId, keys, repeat(group))), pages[group]
            before = len(there)
            for end, page, info in zip(ends, ids, view.find_all(ids), strict=True):
                if info is not None and info.position == end and page not in bad:
                    there[end] = PageUse(page, info)
                    continue
                if info is None and page not in bad:
                    self.absent[page] = end
                if group == PAGED.name:
                    break
            return len(there) - before

        first, stride, gap = 0, STRIDE, blocks
        while PAGED in groups and first < gap:
            last = min(first + stride, blocks)
            keys = chain.boundaries(first, last)
            there = note(PAGED.name, range(first * size + size, last * size + 1, size), keys[1:])
            if there < last - first:
                gap = first + there
            first, stride = last, 2 * stride
        # No group has a use for pages behind the block of the gap.
        keys = chain.boundaries(0, min(gap + 1, blocks))
        for group in groups:
            if group != PAGED:
                note(group.name, range(size, len(keys) * size, size), keys[1:])
        parents = keys[: gap + 1]
        stop = min(len(parents) * size, len(chain) + 1)
        for end, name in view.tails_of(parents):
            if name in pages and 0 < end < stop:
                note(name, [end], [chain.key(end)])
        for page, end in first_pages(chain, groups).items():
            note(page.group, [end], [page.key])
        self.found = {g: GroupPages(g, size, pages[g.name], len(chain)) for g in groups}
        if PAGED in groups:
            self.matched = self.found[PAGED].reach
        else:
            self.matched = max(joined(known, *pages.values()), default=0)
        self.top = min(self.matched, limit)
        self.position = next(self.positions(), 0)

    def positions(self) -> Iterator[int]:
        """Yield the positions that can be restored, deepest first."""
        # Windows and states first: where they were evicted they say so at once.
        pickiest = list(self.found.values())[::-1]
        told = [self.found[STATE]] if STATE in self.found else pickiest
        ends = {min(end, self.top) for pages in told for end in pages.pages} - {0}
        for position in sorted(ends, reverse=True):
            if None not in (pages.covers(position) for pages in pickiest):
                yield position

    def uses(self, position: int) -> dict[GroupSpec, tuple[PageUse, ...]]:
        uses: dict[GroupSpec, tuple[PageUse, ...]] = {}
        for group, pages in self.found.items() if position else ():
            # Two spans may need the same page.
            ends = dict.fromkeys(joined.from_iterable(pages.covers(position) or ()))
            uses[group] = tuple(map(pages.pages.__getitem__, ends))
        return uses


def find_restore_point(
    chain: KeyChain,
    groups: Collection[GroupSpec],
    view: Pages,
    *,
    limit: int,
    tiers: Tiers | None = None,
    bad: frozenset[PageId] = frozenset(),
    known: frozenset[int] = frozenset(),
    gate: RestoreGate | None = None,
    wait: float | None = None,
    asks: bool = True,
    news_seconds: float = inf,
) -> RestorePoint:
    """Return the longest prefix of at most `limit` tokens that can be restored, or without reading
    if a `gate` rejects that. Reads no payload, raises nothing.

    `tiers` say what hides a page from the view; the arguments behind it are for a view that is the
    tiers. Pages in `bad` count as absent. `known` boundaries give the matched length of layouts
    without a paged group. A lookup that ends before `limit` waits `news_seconds` at most for
    changes of peer processes, then asks other machines for the missing pages, for `wait` seconds at
    most (default: as long as they may take). Without `asks` only pages that they recently had
    count.
    """

    walk = partial(Collected, chain, groups, view, known=known, limit=limit)
    since, trouble = 0 if tiers is None else tiers.generation, ""
    walked = walk(bad)
    if tiers is not None and view is tiers:
        # Another thread may have taken over, after the walk, what this one is not told any more.
        if walked.position < limit and (tiers.refresh(news_seconds) or tiers.generation != since):
            walked = walk(bad)
        if asks and walked.position < limit and tiers.asks:
            asked = tiers.ask(_inquiry(chain, groups, walked.matched), wait)
            trouble = asked.trouble
            if asked.news:
                walked = walk(bad)
    position, matched = walked.position, walked.matched
    # Where a prompt parts from others a snapshot would have helped.
    boundary = chain.block_start(matched + 1)
    wanted = boundary if boundary > position and not {*groups} <= {PAGED} else None
    reason, lacking = None, ""
    if not 0 < position == limit:
        hidden = {} if tiers is None else tiers.hidden(list(walked.absent))
        reason, lacking = _shortage(walked, hidden, trouble)
    point = RestorePoint(position, walked.uses(position), reason, matched, wanted, lacking)
    reads = point.bytes_to_read()
    if gate is not None and reads:
        every = joined.from_iterable(group.pages.values() for group in walked.found.values())
        here = walk({*bad, *(page for page, info in every if not info.in_memory)})
        slower = gate.rejects(position - here.position, reads)
        if slower:
            return RestorePoint(here.position, here.uses(here.position), slower, matched)
    return point


def _inquiry(chain: KeyChain, groups: Collection[GroupSpec], matched: int) -> Inquiry:
    size, has_blocks = chain.block_size, PAGED in groups
    # A page that ends behind the limit covers the tokens before it.
    blocks = len(chain) // size
    others = {
        group.name: 0 if group.kind == "state" else len(group.page_ends(len(chain), size))
        for group in groups
        if group != PAGED
    }
    return Inquiry(
        namespace=chain.namespace,
        block_size=size,
        keys=chain.boundaries(0, blocks),
        paged=PAGED.name if has_blocks else None,
        known=min(matched // size, blocks) if has_blocks else 0,
        others=others,
        length=len(chain),
        key=chain.key,
        firsts=list(first_pages(chain, groups)),
    )


def first_pages(chain: KeyChain, groups: Iterable[GroupSpec]) -> dict[PageId, int]:
    """Return the pages with the tokens that windows keep for good, and where they end."""
    kept = [group for group in groups if 0 < group.keep <= len(chain)]
    return {PageId(chain.key(group.keep), group.name): group.keep for group in kept}


def _shortage(walked: Collected, hidden: Mapping[PageId, str], trouble: str) -> tuple[str, str]:
    """Return why no more was found, and the kind of group, `state` or `window`, that ends the
    prefix; "" for blocks."""
    nothing = reasons.NO_RESTORE_POINT if walked.matched > walked.position else reasons.ABSENT
    end, reason = walked.position, trouble or nothing
    for page, why in hidden.items():
        if walked.absent[page] > walked.position:
            end, reason = max((end, reason), (walked.absent[page], why))
    if walked.position >= walked.top or walked.found.keys() <= {PAGED}:
        return reason, ""
    states = walked.found.get(STATE)
    kept = states is None or any(walked.position < end <= walked.top for end in states.pages)
    return reason, "window" if kept else "state"
