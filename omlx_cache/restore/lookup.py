"""Where a prefix can be restored: a pure walk over keys, without reading a payload.

A restore point is a token count at which every layer group can be rebuilt. The walk collects
the pages on the token sequence's own chain, then tries positions from the longest down.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from omlx_cache import reasons
from omlx_cache.adapters.base import GroupSpec, TokenRange
from omlx_cache_storage.index import Tail
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId, PageInfo


class PageView(Protocol):
    """What the walk asks of a store."""

    def find(self, page: PageId) -> PageInfo | None: ...
    def tails(self, parent: BlockKey) -> set[Tail]: ...


class PageUse(NamedTuple):
    """A page on the chain, and where it lies."""

    page: PageId
    info: PageInfo


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The longest restorable prefix: `position` tokens from `uses`, root first per group.

    `reason` is None when nothing was left to restore. `matched` counts the leading tokens whose
    blocks are known, restorable or not; `wanted_state` is where windows or a snapshot were missed.
    """

    position: int
    uses: dict[GroupSpec, tuple[PageUse, ...]]
    reason: str | None
    matched: int
    wanted_state: int | None = None


@dataclass(slots=True)
class _Chain:
    """The pages found, by group and end position."""

    block_size: int
    pages: dict[GroupSpec, dict[int, PageUse]] = field(default_factory=dict)

    def needed(self, group: GroupSpec, position: int) -> tuple[PageUse, ...] | None:
        """Return the pages that rebuild a group at a position, or None."""
        found = self.pages[group]
        if group.kind == "state":
            use = found.get(position)
            return None if use is None else (use,)
        uses: dict[PageUse, None] = {}
        for span in group.needs(position):
            cover = self._cover(found, span, position)
            if cover is None:
                return None
            uses.update(dict.fromkeys(cover))
        return tuple(uses)

    def _cover(
        self, found: dict[int, PageUse], span: TokenRange, position: int
    ) -> list[PageUse] | None:
        uses = []
        start = span.start
        while start < span.stop:
            boundary = start // self.block_size * self.block_size + self.block_size
            stop = min(span.stop, boundary)
            use = self._covering(found, start, stop, boundary) or found.get(span.stop)
            if use is not None and use.info.position - use.info.held > start:
                use = None
            if use is None:
                return None
            uses.append(use)
            start = stop
        return uses

    def _covering(
        self, found: dict[int, PageUse], start: int, stop: int, boundary: int
    ) -> PageUse | None:
        def covers(end: int) -> bool:
            use = found.get(end)
            return use is not None and end - use.info.held <= start

        end = next(filter(covers, (stop, boundary)), None)
        if end is None:
            # Seldom needed, and as long as the chain: kept out of the way of every block.
            inside = sorted(end for end in found if stop < end < boundary)
            end = next(filter(covers, inside), None)
        return None if end is None else found[end]


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
    found = _collect(chain, groups, view, bad)
    matched = _reach(chain, groups, found, known)
    top = min(matched, limit)
    for position in _candidates(groups, found, top):
        uses = {group: found.needed(group, position) for group in groups}
        if all(use is not None for use in uses.values()):
            full = {group: use for group, use in uses.items() if use is not None}
            reason = None if position == limit else _reason(matched, position)
            return RestorePoint(
                position, full, reason, matched, _missed(groups, position, matched, chain)
            )
    return RestorePoint(0, {}, _reason(matched, 0), matched, _missed(groups, 0, matched, chain))


def _reason(matched: int, position: int) -> str:
    return reasons.NO_RESTORE_POINT if matched > position else reasons.ABSENT


def _missed(
    groups: Sequence[GroupSpec], position: int, matched: int, chain: KeyChain
) -> int | None:
    """Return the branch boundary at which a snapshot would have helped."""
    boundary = matched // chain.block_size * chain.block_size
    if boundary > position and any(group.kind != "paged" for group in groups):
        return boundary
    return None


def _collect(
    chain: KeyChain,
    groups: Sequence[GroupSpec],
    view: PageView,
    bad: frozenset[PageId],
) -> _Chain:
    found = _Chain(chain.block_size, {group: {} for group in groups})
    paged = next((group for group in groups if group.kind == "paged"), None)
    names = {group.name: group for group in groups}

    def note(group: GroupSpec, end: int) -> bool:
        page = PageId(chain.key(end), group.name)
        info = view.find(page) if page not in bad else None
        if info is None or info.position != end:
            return False
        found.pages[group][end] = PageUse(page, info)
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
    return found


def _reach(
    chain: KeyChain, groups: Sequence[GroupSpec], found: _Chain, known: frozenset[int]
) -> int:
    """Return how many leading tokens are known."""
    paged = next((group for group in groups if group.kind == "paged"), None)
    if paged is None:
        ends = {end for pages in found.pages.values() for end in pages}
        return max(ends | known, default=0)
    ends = set(found.pages[paged])
    reach = 0
    while reach + chain.block_size in ends:
        reach += chain.block_size
    return max([end for end in ends if reach <= end < reach + chain.block_size], default=reach)


def _candidates(groups: Sequence[GroupSpec], found: _Chain, top: int) -> Iterator[int]:
    """Yield positions worth trying, the longest first, all > 0 and <= top."""
    states = [found.pages[group] for group in groups if group.kind == "state"]
    if states:
        ends = {end for end in states[0] if 0 < end <= top}
    else:
        ends = {min(end, top) for pages in found.pages.values() for end in pages} - {0}
    yield from sorted(ends, reverse=True)
