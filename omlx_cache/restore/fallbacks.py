"""Restore points that stay with a chain beside the one in use: what is left of it when its deep end
must go.

Pages of one use share a stamp, and of those the deepest leave first. Windows and recurrent state
are useful at one position only, so a chain that kept them at its end alone would be worth nothing
from the first eviction on. What a tier lacks cannot stand in for what it has: memory may hold the
end of a sequence that the disk has no room for.
"""

from bisect import bisect_left
from collections.abc import Sequence

from omlx_cache.adapters.base import GroupSpec
from omlx_cache.restore.lookup import GroupPages, PageUse, collect, positions, reach
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import PageId
from omlx_cache_storage.tiers import TierView

SHARE = 8
"""Shallower points may take this part of a chain's bytes."""
LARGE = 5
"""A chain that takes this part of a tier or more has one for each such part, whatever they take."""
MOST = 24
"""And never has more than these."""


def fallbacks(
    chain: KeyChain, groups: Sequence[GroupSpec], view: TierView, limit: int
) -> list[PageId]:
    """Return the pages of the deepest point up to `limit` that a tier can restore by itself, and of
    shallower ones, evenly spaced. Pure but for `view`; nothing for models that trim."""
    if all(group.kind == "paged" for group in groups):
        return []
    found, _hidden = collect(chain, groups, view)
    ascending = list(positions(found, min(limit, reach(chain, groups, found))))[::-1]
    if not ascending:
        return []
    kept = dict.fromkeys(_pages(found, ascending[-1]))
    for position in _spaced(ascending, _count(found, ascending[-1], view.limit_bytes)):
        kept.update(dict.fromkeys(_pages(found, position)))
    return [use.page for use in kept]


def _pages(found: dict[GroupSpec, GroupPages], position: int) -> list[PageUse]:
    return [use for pages in found.values() for use in pages.needed(position)]


def _count(found: dict[GroupSpec, GroupPages], position: int, limit_bytes: int) -> int:
    """Return how many more points a chain is worth, or shall have as it is large."""
    whole = sum(use.info.nbytes for use in _pages(found, position))
    aging = [pages for group, pages in found.items() if group.kind != "paged"]
    each = sum(use.info.nbytes for pages in aging for use in pages.needed(position))
    return min(MOST, max(whole // SHARE // max(1, each), LARGE * whole // max(1, limit_bytes)))


def _spaced(ascending: Sequence[int], count: int) -> set[int]:
    """Return the positions nearest to those that would divide the longest evenly."""
    nearest = set()
    for part in range(1, count + 1):
        ideal = ascending[-1] * part // (count + 1)
        at = bisect_left(ascending, ideal)
        around = ascending[max(0, at - 1) : at + 1]
        nearest.add(min(around, key=lambda position: abs(position - ideal)))
    return nearest
