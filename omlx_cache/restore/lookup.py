"""Where a prefix can be restored: the pages on a token sequence's own chain are collected, then
positions are tried from the longest down. Reads no payload."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain as joined
from itertools import repeat
from math import inf
from typing import NamedTuple, Protocol

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, STATE, GroupSpec
from omlx_cache.restore.gate import RestoreGate
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId, PageInfo, Tail
from omlx_cache_storage.remote.lookups import Inquiry
from omlx_cache_storage.tiers import Tiers

STRIDE = 16
"""Paged blocks that are looked for at a time, at first; then twice as many each time."""


class Pages(Protocol):
    """Where pages lie: in a store, a tier, or a restore's memory. Reads nothing. `tails_of` names
    the pages that may end inside the blocks after boundaries."""

    def find_all(self, pages: Sequence[PageId]) -> Sequence[PageInfo | None]: ...
    def tails_of(self, parents: Sequence[BlockKey]) -> Collection[Tail]: ...


class PageUse(NamedTuple):
    page: PageId
    info: PageInfo


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The longest restorable prefix: `position` tokens from `uses`, root first per group. `reason`
    is None when nothing was left to restore. `matched` leading tokens are known, restorable or not.
    `wanted_state` is where windows or a snapshot of the kind `lacking` were missed."""

    position: int
    uses: dict[GroupSpec, tuple[PageUse, ...]]
    reason: str | None
    matched: int
    wanted_state: int | None = None
    lacking: str = ""

    @property
    def all_uses(self) -> list[PageUse]:
        return [use for uses in self.uses.values() for use in uses]

    @property
    def root_first(self) -> list[PageId]:
        return [use.page for use in sorted(self.all_uses, key=lambda use: use.info.position)]

    def bytes_to_read(self) -> Counter[str]:
        nbytes: Counter[str] = Counter()
        for use in self.all_uses:
            if not use.info.in_memory:
                nbytes[use.info.tier] += use.info.nbytes
        return nbytes


class GroupPages:
    """The pages of one group, by end position, indexed so that a cover is judged in O(1): `_gap`
    leads over whole blocks. A page that ends inside a block can cover only the last block of a
    span, and one that begins inside it only the first."""

    def __init__(self, group: GroupSpec, block_size: int) -> None:
        self.group = group
        self.pages: dict[int, tuple[PageId, PageInfo]] = {}
        self._size = block_size
        self._inside: dict[int, list[int]] = {}
        self._gap: list[int] = []

    def index(self, length: int) -> None:
        """Prepare the answers for positions up to `length`; linear in it, and called last."""
        size, pages = self._size, self.pages
        gap = length // size
        self._gap = [gap] * (gap + 1)
        for block in range(gap - 1, -1, -1):
            found = pages.get(block * size + size)
            if found is None or found[1].held < size:
                gap = block
            self._gap[block] = gap
        for end in sorted(end for end in pages if end % size):
            self._inside.setdefault(end // size, []).append(end)

    def reach(self) -> int:
        return max(self._inside.get(self._gap[0], [self._gap[0] * self._size]))

    def needed(self, position: int) -> tuple[PageUse, ...]:
        ends = dict.fromkeys(joined.from_iterable(self.covers(position)))
        return tuple(PageUse(*self.pages[end]) for end in ends)

    def covers(self, position: int) -> Iterator[Sequence[int]]:
        """Yield the ends of the pages that rebuild the group; an empty part, and no more, where one
        is missing."""
        size = self._size
        if self.group.kind == "state":
            yield [position] if position in self.pages else []
        for start, last in self.group.needs(position):
            # One page may reach further back than its block: the sinks of a window.
            enough = self._from(last)
            while start < min(last, enough):
                block = start // size
                gap = min(self._gap[block], last // size) * size
                if start % size == 0 and gap > start:
                    yield range(start + size, gap + 1, size)
                    start = gap
                    continue
                stop = min(last, block * size + size)
                ends = (stop, block * size + size, *self._inside.get(block, ()))
                end = next((end for end in ends if end >= stop and self._from(end) <= start), None)
                yield [] if end is None else [end]
                if end is None:
                    return
                start = stop
            if enough < last:
                yield [last]

    def _from(self, end: int) -> int:
        found = self.pages.get(end)
        return end if found is None else end - found[1].held


@dataclass(slots=True)
class Collected:
    """The pages of a chain, and where its `absent` pages would end. `matched` leading tokens are
    known, `top` of them may be restored, and at most `position` can be."""

    found: dict[GroupSpec, GroupPages]
    absent: dict[PageId, int]
    matched: int
    top: int
    position: int = field(init=False)

    def __post_init__(self) -> None:
        self.position = next(self.positions(), 0)

    def positions(self) -> Iterator[int]:
        # Windows and states first: where they were evicted they say so at once.
        pickiest = list(self.found.values())[::-1]
        if STATE in self.found:
            ends = {end for end in self.found[STATE].pages if 0 < end <= self.top}
        else:
            ends = {min(end, self.top) for pages in pickiest for end in pages.pages} - {0}
        for position in sorted(ends, reverse=True):
            if all(all(pages.covers(position)) for pages in pickiest):
                yield position

    def uses(self, position: int) -> dict[GroupSpec, tuple[PageUse, ...]]:
        if not position:
            return {}
        return {group: pages.needed(position) for group, pages in self.found.items()}


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

    walk = partial(collect, chain, groups, view, known=known, limit=limit)
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
    hidden = {} if tiers is None else tiers.hidden(list(walked.absent))
    boundary = chain.block_start(matched + 1)
    point = RestorePoint(
        position,
        walked.uses(position),
        None if 0 < position == limit else _reason(walked, hidden, trouble),
        matched,
        # Where a prompt parts from others a snapshot would have helped.
        boundary if boundary > position and not {*groups} <= {PAGED} else None,
        _lacking(walked),
    )
    reads = point.bytes_to_read()
    if gate is not None and reads:
        away = {
            page
            for group in walked.found.values()
            for page, info in group.pages.values()
            if not info.in_memory
        }
        here = walk(bad | away)
        slower = gate.rejects(position - here.position, reads)
        if slower:
            return RestorePoint(here.position, here.uses(here.position), slower, matched)
    return point


def _inquiry(chain: KeyChain, groups: Collection[GroupSpec], matched: int) -> Inquiry:
    size = chain.block_size
    has_blocks = PAGED in groups
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
        firsts=first_pages(chain, groups),
    )


def first_pages(chain: KeyChain, groups: Iterable[GroupSpec]) -> list[PageId]:
    """Return the pages with the tokens that windows keep for good."""
    return [PageId(chain.key(g.keep), g.name) for g in groups if 0 < g.keep <= len(chain)]


def _reason(walked: Collected, hidden: Mapping[PageId, str], trouble: str) -> str:
    ends = [(walked.absent[page], why) for page, why in hidden.items()]
    end, why = max(ends, default=(0, ""))
    if end > walked.position:
        return why
    nothing = reasons.NO_RESTORE_POINT if walked.matched > walked.position else reasons.ABSENT
    return trouble or nothing


def _lacking(walked: Collected) -> str:
    """Return the kind of group, `state` or `window`, that ends the prefix; "" for blocks."""
    if walked.position >= walked.top or walked.found.keys() <= {PAGED}:
        return ""
    states = walked.found.get(STATE)
    kept = states is None or any(walked.position < end <= walked.top for end in states.pages)
    return "window" if kept else "state"


def collect(
    chain: KeyChain,
    groups: Collection[GroupSpec],
    view: Pages,
    bad: frozenset[PageId] = frozenset(),
    *,
    limit: int,
    known: frozenset[int] = frozenset(),
) -> Collected:
    """Return the pages of a chain up to the first gap in the paged group, but for `bad` ones."""
    absent: dict[PageId, int] = {}
    found = {group: GroupPages(group, chain.block_size) for group in groups}
    names = {group.name: group for group in groups}
    size, blocks = chain.block_size, len(chain) // chain.block_size

    def note(group: GroupSpec, ends: Sequence[int], keys: Sequence[BlockKey]) -> int:
        pages, there = list(map(PageId, keys, repeat(group.name))), found[group].pages
        before = len(there)
        for end, page, one in zip(ends, pages, view.find_all(pages), strict=True):
            if one is not None and one.position == end and page not in bad:
                there[end] = page, one
                continue
            if one is None and page not in bad:
                absent[page] = end
            if group == PAGED:
                break
        return len(there) - before

    first, stride, gap = 0, STRIDE, blocks
    while PAGED in found and first < gap:
        last = min(first + stride, blocks)
        keys = chain.boundaries(first, last)
        there = note(PAGED, range(first * size + size, last * size + 1, size), keys[1:])
        if there < last - first:
            gap = first + there
        first, stride = last, 2 * stride
    # No group has a use for pages behind the block of the gap.
    keys = chain.boundaries(0, min(gap + 1, blocks))
    for group in groups:
        if group != PAGED:
            note(group, range(size, len(keys) * size, size), keys[1:])
    parents = keys[: gap + 1]
    stop = min(len(parents) * size, len(chain) + 1)
    for tail in view.tails_of(parents):
        if tail.group in names and 0 < tail.position < stop:
            note(names[tail.group], [tail.position], [chain.key(tail.position)])
    for page in first_pages(chain, groups):
        group = names[page.group]
        note(group, [group.keep], [page.key])
    for group_pages in found.values():
        group_pages.index(len(chain))
    if PAGED in found:
        matched = found[PAGED].reach()
    else:
        matched = max({*known, *(end for one in found.values() for end in one.pages)}, default=0)
    return Collected(found, absent, matched, min(matched, limit))
