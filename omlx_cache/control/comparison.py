"""Memory and disk compared, page by page, for `doctor` and tests."""

from typing import NamedTuple

import numpy as np

from omlx_cache.status.runs import columns_of_files, hint_numbers
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.hot_page import PageState
from omlx_cache_storage.page import PAGED, PageId
from omlx_cache_storage.tiers import Tiers

COMPARE_SECONDS = 2.0
"""How long a comparison of the tiers waits for the writer to tell memory what left the disk."""


class Disagreement(NamedTuple):
    """What the tiers disagree on. `unbacked`: pages that memory has as clean and the disk has not.
    `orphans`: pages on the disk whose parent block neither tier has, so that nothing can be
    restored from them; a page that was damaged or lost leaves such."""

    unbacked: list[PageId]
    orphans: list[PageId]


def compare(tiers: Tiers) -> Disagreement:
    """Compare memory with the disk, page by page; waits two seconds at most for the writer.
    Commits may go on."""
    hot, cold, writer = tiers.hot, tiers.cold, tiers.writer
    if cold is None or writer is None:
        return Disagreement([], [])
    before = set(_absent(hot, cold))
    # What is on its way from the disk to memory arrives meanwhile.
    settled = before and writer.settle(COMPARE_SECONDS)
    unbacked = [page for page in _absent(hot, cold) if settled and page in before]
    return Disagreement(unbacked, _orphans(hot, cold))


def _absent(hot: HotTier, cold: ColdTier) -> list[PageId]:
    """Return the pages that memory has as clean and the disk does not have; one that it does not
    show now counts as there."""
    clean = [held.id for held in hot.entries() if held.state is PageState.CLEAN]
    absent = [page for page in clean if cold.info(page) is None]
    hidden = cold.hidden(absent)
    return [page for page in absent if page not in hidden]


def _orphans(hot: HotTier, cold: ColdTier) -> list[PageId]:
    files = cold.records()
    columns = columns_of_files(files)
    here = [(held.namespace, held.id.key) for held in hot.entries()]
    paged = {file.id.key: file.id for file in files if file.id.group == PAGED}
    roots = [*columns.keys, *columns.namespaces, *(key for names in here for key in names)]
    lost = columns.keys[~np.isin(columns.hints, hint_numbers(roots))]
    return [paged[key] for key in lost if key in paged]
