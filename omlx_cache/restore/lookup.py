"""Where a prefix can be restored: a pure walk over keys, without reading a payload.

A restore point is a token count at which every layer group can be rebuilt. The walk collects
the pages on the token sequence's own chain, then tries positions from the longest down.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from omlx_cache import reasons
from omlx_cache.adapters.base import GroupSpec, TokenRange, paged_of
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId, PageInfo, Tail


class PageView(Protocol):
    """What the walk for a restore point asks: which pages there are. Reads nothing.

    `why_hidden` is the reason why a page is not found although it is stored.
    """

    def find(self, page: PageId) -> PageInfo | None: ...
    def tails(self, parent: BlockKey) -> set[Tail]: ...
    def why_hidden(self, page: PageId) -> str | None: ...


class PageUse(NamedTuple):
    """A page on the chain, and where it lies."""

    page: PageId
    info: PageInfo


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The longest restorable prefix: `position` tokens from `uses`, root first per group.

    `reason` is None when nothing was left to restore. `matched` counts the leading tokens whose
    blocks are known, restorable or not; `wanted_state` is where windows or a snapshot were missed,
    `lacking` the kind of group that was.
    """

    position: int
    uses: dict[GroupSpec, tuple[PageUse, ...]]
    reason: str | None
    matched: int
    wanted_state: int | None = None
    lacking: str = ""


class Hidden(NamedTuple):
    """The deepest page that is stored and cannot be had now: where it ends, and why."""

    position: int = 0
    reason: str = ""


class GroupPages:
    """The pages of one group, by end position, indexed so that a cover is judged in O(1).

    Only the last block of a span can be covered by a page that ends inside a block, and only the
    first by one that begins inside it: `_gap` leads over all the whole blocks between.
    """

    def __init__(self, group: GroupSpec, block_size: int) -> None:
        self.group = group
        self.uses: dict[int, PageUse] = {}
        self._size = block_size
        self._inside: dict[int, list[int]] = {}
        self._gap: list[int] = []

    def add(self, use: PageUse) -> None:
        """Take a page; only before the first question."""
        end = use.info.position
        if end not in self.uses and end % self._size:
            self._inside.setdefault(end // self._size, []).append(end)
        self.uses[end] = use

    def index(self, length: int) -> None:
        """Prepare the answers for positions up to `length`; linear in it."""
        blocks = length // self._size
        self._gap = [blocks] * (blocks + 1)
        for block in range(blocks - 1, -1, -1):
            start = block * self._size
            whole = self._from(start + self._size) <= start
            self._gap[block] = self._gap[block + 1] if whole else block
        for ends in self._inside.values():
            ends.sort()

    def rebuilds(self, position: int) -> bool:
        """True when the group can be rebuilt at a position."""
        if self.group.kind == "state":
            return position in self.uses
        return all(self._covers(span) for span in self.group.needs(position))

    def needed(self, position: int) -> tuple[PageUse, ...]:
        """Return the pages that rebuild the group at a position where `rebuilds` holds."""
        if self.group.kind == "state":
            return (self.uses[position],)
        found: dict[PageUse, None] = {}
        for span in self.group.needs(position):
            found.update(dict.fromkeys(self._cover(span)))
        return tuple(found)

    def _from(self, end: int) -> int:
        """Return where the page that ends at `end` begins; `end` itself without one."""
        use = self.uses.get(end)
        return end if use is None else end - use.info.held

    def _covers(self, span: TokenRange) -> bool:
        start, size = span.start, self._size
        # One page may reach further back than its block: the sinks of a window.
        enough = self._from(span.stop)
        while start < min(span.stop, enough):
            if start % size == 0 and start + size < span.stop:
                gap = self._gap[start // size] * size
                if gap > start:
                    start = min(gap, (span.stop - 1) // size * size)
                    continue
            stop = min(span.stop, start // size * size + size)
            if self._covering(start, stop) is None:
                return False
            start = stop
        return True

    def _cover(self, span: TokenRange) -> Iterator[PageUse]:
        start = span.start
        while start < span.stop:
            stop = min(span.stop, start // self._size * self._size + self._size)
            yield self._covering(start, stop) or self.uses[span.stop]
            start = stop

    def _covering(self, start: int, stop: int) -> PageUse | None:
        """Return a page that covers [start, stop), which lies in one block."""
        block = start // self._size
        boundary = (block + 1) * self._size
        for end in (stop, boundary):
            if self._from(end) <= start:
                return self.uses[end]
        for end in self._inside.get(block, ()):
            if end > stop and self._from(end) <= start:
                return self.uses[end]
        return None


def find_restore_point(
    chain: KeyChain,
    groups: Sequence[GroupSpec],
    view: PageView,
    *,
    limit: int,
    bad: frozenset[PageId] = frozenset(),
    known: frozenset[int] = frozenset(),
) -> RestorePoint:
    """Return the longest prefix of at most `limit` tokens that can be restored.

    Pure but for `view`; reads no payload, raises nothing. Pages in `bad` count as absent.
    `known` are boundaries that earlier requests reached: the matched length of layouts without
    a paged group.
    """
    found, hidden = collect(chain, groups, view, bad)
    matched = reach(chain, groups, found, known)
    position = next(positions(found, min(matched, limit)), 0)
    uses = {group: found[group].needed(position) for group in groups} if position else {}
    reason = None if position and position == limit else _reason(matched, position, hidden)
    wanted = _missed(groups, position, matched, chain)
    lacking = _lacking(found, position, min(matched, limit))
    return RestorePoint(position, uses, reason, matched, wanted, lacking)


def positions(found: Mapping[GroupSpec, GroupPages], top: int) -> Iterator[int]:
    """Yield the positions up to `top` at which every group can be rebuilt, the longest first."""
    # Windows and states first: where they were evicted they say so at once.
    pickiest = sorted(found.values(), key=lambda pages: pages.group.kind == "paged")
    for position in _candidates(found, top):
        if all(pages.rebuilds(position) for pages in pickiest):
            yield position


def _reason(matched: int, position: int, hidden: Hidden) -> str:
    if hidden.position > position:
        return hidden.reason
    return reasons.NO_RESTORE_POINT if matched > position else reasons.ABSENT


def _lacking(found: Mapping[GroupSpec, GroupPages], position: int, top: int) -> str:
    """Return the kind of group, `state` or `window`, for want of which nothing beyond a position
    can be rebuilt; "" when blocks are all that there is, or that is missing."""
    aging = [group for group in found if group.kind != "paged"]
    if position >= top or not aging:
        return ""
    states = [found[group].uses for group in aging if group.kind == "state"]
    kept = any(position < end <= top for end in states[0]) if states else True
    return "window" if kept else "state"


def _missed(
    groups: Sequence[GroupSpec], position: int, matched: int, chain: KeyChain
) -> int | None:
    """Return the branch boundary at which a snapshot would have helped."""
    boundary = matched // chain.block_size * chain.block_size
    if boundary > position and any(group.kind != "paged" for group in groups):
        return boundary
    return None


def collect(
    chain: KeyChain,
    groups: Sequence[GroupSpec],
    view: PageView,
    bad: frozenset[PageId] = frozenset(),
) -> tuple[dict[GroupSpec, GroupPages], Hidden]:
    """Return the pages of a chain, by group, up to the first gap in the paged one; and what is
    hidden of it."""
    hidden = Hidden()
    found = {group: GroupPages(group, chain.block_size) for group in groups}
    paged = paged_of(groups)
    names = {group.name: group for group in groups}

    def note(group: GroupSpec, end: int) -> bool:
        nonlocal hidden
        page = PageId(chain.key(end), group.name)
        if page in bad:
            return False
        info = view.find(page)
        if info is None:
            why = view.why_hidden(page)
            hidden = hidden if why is None else Hidden(end, why)
            return False
        if info.position != end:
            return False
        found[group].add(PageUse(page, info))
        return True

    for start in range(0, len(chain), chain.block_size):
        parent = chain.namespace if start == 0 else chain.key(start)
        stop = min(start + chain.block_size, len(chain) + 1)
        for tail in view.tails(parent):
            if start < tail.position < stop and tail.group in names:
                note(names[tail.group], tail.position)
        end = start + chain.block_size
        if end > len(chain):
            break
        present = [note(group, end) for group in groups]
        if paged is not None and not present[0]:
            break
    for group in groups:
        if group.keep > chain.block_size and group.keep <= len(chain):
            note(group, group.keep)
    for pages in found.values():
        pages.index(len(chain))
    return found, hidden


def reach(
    chain: KeyChain,
    groups: Sequence[GroupSpec],
    found: Mapping[GroupSpec, GroupPages],
    known: frozenset[int] = frozenset(),
) -> int:
    """Return how many leading tokens are known."""
    paged = paged_of(groups)
    if paged is None:
        ends = {end for pages in found.values() for end in pages.uses}
        return max(ends | known, default=0)
    paged_ends = found[paged].uses
    whole = 0
    while whole + chain.block_size in paged_ends:
        whole += chain.block_size
    return max((e for e in paged_ends if whole <= e < whole + chain.block_size), default=whole)


def _candidates(found: Mapping[GroupSpec, GroupPages], top: int) -> list[int]:
    """Return positions worth trying, the longest first, all > 0 and <= top."""
    states = [pages.uses for group, pages in found.items() if group.kind == "state"]
    if states:
        ends = {end for end in states[0] if 0 < end <= top}
    else:
        ends = {min(end, top) for pages in found.values() for end in pages.uses} - {0}
    return sorted(ends, reverse=True)
