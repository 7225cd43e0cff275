"""One page as two tiers have it, for listings and for choosing what shall go. Reads no disk."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from omlx_cache_storage.hot_page import HotEntry
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageMeta
from omlx_cache_storage.tier import TierEntry


@dataclass(frozen=True, slots=True)
class ListedPage:
    """One page of either tier, or of both; `cold` is its file, `meta` is known of a live one."""

    namespace: BlockKey
    page: PageId
    position: int
    tokens: int
    nbytes: int
    tiers: tuple[str, ...]
    used_ns: int
    cold: TierEntry | None = None
    meta: PageMeta | None = None

    @property
    def path(self) -> Path | None:
        """Where the file lies; made when it is asked for."""
        return None if self.cold is None else self.cold.path


def list_pages(hot: Iterable[HotEntry], cold: Iterable[TierEntry]) -> list[ListedPage]:
    """Return every page of two tiers once, in no order."""
    merged: dict[PageId, ListedPage] = {}
    for held in hot:
        merged[held.page] = replace(_listed(held), meta=held.meta)
    for entry in cold:
        page = replace(_listed(entry), cold=entry)
        live = merged.get(page.page)
        if live is not None:
            used_ns = max(live.used_ns, page.used_ns)
            page = replace(page, tiers=(*live.tiers, "cold"), used_ns=used_ns, meta=live.meta)
        merged[page.page] = page
    return list(merged.values())


def used_by_anybody(pages: Iterable[ListedPage], files: Iterable[TierEntry]) -> list[ListedPage]:
    """Return pages with the later of two stamps: their own, and that of their file, which other
    processes may have used."""
    stamps = {entry.page: entry.used_ns for entry in files}
    return [
        replace(page, used_ns=stamps[page.page])
        if stamps.get(page.page, 0) > page.used_ns
        else page
        for page in pages
    ]


def _listed(entry: TierEntry) -> ListedPage:
    info = entry.info
    return ListedPage(
        entry.namespace,
        entry.page,
        info.position,
        info.held,
        info.nbytes,
        (info.tier,),
        entry.used_ns,
    )
