"""Chains are written from the root on: a page's file is of no use without those before it."""

from collections.abc import Callable, Iterable

from omlx_cache_storage.page import PAGED, PageId, PageMeta


def rooted(pages: Iterable[PageId], lacking: Callable[[PageId], PageMeta | None]) -> list[PageId]:
    """Return pages, before each those of its chain that lead to it and that the disk lacks too;
    each page once.

    `lacking` describes a page of memory that the disk lacks, None for any other: what leads to a
    page that the disk has is there as well, and looked at no further.
    """
    found: dict[PageId, None] = {}
    for page in pages:
        line = []
        at = page
        while at not in found and (meta := lacking(at)) is not None:
            line.append(at)
            at = PageId(meta.parent if meta.group == PAGED else meta.key, PAGED)
        found.update(dict.fromkeys(reversed(line)))
    return list(found)
