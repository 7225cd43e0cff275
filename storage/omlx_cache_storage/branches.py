"""Where other sequences leave a chain, from what an index knows of its pages' parents. Pure."""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from omlx_cache_storage.format.names import parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId


class _Follows(Protocol):
    """An index entry, which names the boundary that its page follows."""

    @property
    def hint(self) -> bytes: ...


def branches(
    entries: Iterable[tuple[PageId, _Follows]],
    parents: Sequence[BlockKey],
    own: Collection[BlockKey],
) -> set[BlockKey]:
    """Return those of `parents` that a page follows whose key is not among `own`. Looks at every
    entry."""
    boundaries = {parent_hint(parent): parent for parent in parents}
    return {
        boundaries[entry.hint]
        for page, entry in entries
        if entry.hint in boundaries and page.key not in own
    }
