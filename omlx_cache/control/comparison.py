"""Memory and disk compared, page by page, for `doctor` and tests."""

from typing import NamedTuple

from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.hot_page import PageState
from omlx_cache_storage.keys import PARENT_HINT_BYTES
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
    files, held = cold.records(), hot.entries()
    known = {file.namespace for file in files} | {file.id.key for file in files}
    known |= {page.namespace for page in held} | {page.id.key for page in held}
    hints = {key[:PARENT_HINT_BYTES] for key in known}
    paged = {file.id.key: file.id for file in files if file.id.group == PAGED}
    return [paged[f.id.key] for f in files if f.hint not in hints and f.id.key in paged]
