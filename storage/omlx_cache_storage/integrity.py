"""What the tiers must agree on: compared page by page, for tests and for `omlx-cache doctor`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import PAGED, PageId
from omlx_cache_storage.table import hint_numbers
from omlx_cache_storage.tier import BackingTier


class Disagreement(NamedTuple):
    """What the tiers disagree on. `unbacked`: pages that memory has as clean and the disk has not.
    `orphans`: pages on the disk whose parent block neither tier has, so that nothing can be
    restored from them; a page that was damaged or lost leaves such."""

    unbacked: list[PageId]
    orphans: list[PageId]


def compare(hot: HotTier, cold: BackingTier, settle: Callable[[], bool]) -> Disagreement:
    """Compare memory with the disk. `settle` has the writer tell memory what left the disk, and
    answers whether it did; without an answer nothing is said to be unbacked."""
    before = set(_absent(hot.clean(), cold))
    unbacked = []
    if before and settle():
        # What was on its way from the disk to memory has arrived.
        unbacked = _absent([page for page in hot.clean() if page in before], cold)
    return Disagreement(unbacked, _orphans(hot, cold))


def _absent(pages: Sequence[PageId], cold: BackingTier) -> list[PageId]:
    """Return those of the pages that the disk does not have; one that it does not show now counts
    as there."""
    absent = [page for page in pages if cold.info(page) is None]
    hidden = cold.hidden(absent)
    return [page for page in absent if page not in hidden]


def _orphans(hot: HotTier, cold: BackingTier) -> list[PageId]:
    columns = cold.columns()
    paged = {entry.page.key: entry.page for entry in cold.listing() if entry.page.group == PAGED}
    roots = [*columns.namespaces, *hot.namespaces()]
    parents = hint_numbers([*columns.keys, *(page.key for page in hot.pages()), *roots])
    lost = columns.keys[~np.isin(columns.hints, parents)]
    return [paged[key] for key in lost if key in paged]
