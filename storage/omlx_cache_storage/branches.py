"""Where other sequences leave a chain, from what an index knows of its pages' parents. Pure."""

from collections.abc import Collection, Iterable
from typing import Protocol

from omlx_cache_storage.format.names import parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId


class _Follows(Protocol):
    """An index entry, which names the boundary that its page follows."""

    @property
    def hint(self) -> bytes: ...


def branches(
    entries: Iterable[tuple[PageId, _Follows]], keys: Collection[BlockKey]
) -> set[BlockKey]:
    """Return those of the keys that a page follows which is none of them. Looks at every entry."""
    boundaries, own = {parent_hint(key): key for key in keys}, set(keys)
    return {
        boundaries[entry.hint]
        for page, entry in entries
        if entry.hint in boundaries and page.key not in own
    }
