"""What a tier is told of recency, pins and eviction, and a store that sees to itself is not."""

from collections.abc import Collection, Iterable, Sequence

from omlx_cache_storage.eviction.learned import Learned
from omlx_cache_storage.hints import Pinned
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId


class Unmanaged:
    """The part of `Tier` that does nothing where the store evicts by itself."""

    @property
    def patience_ns(self) -> int:
        return 0

    def touch(
        self,
        chain: Iterable[PageId],
        stamp_ns: int | None = None,
        since_ns: int = 0,
        *,
        used: bool = True,
    ) -> None:
        """Do nothing: to read a page is to use it."""

    def note_shift(self, stamp_ns: int, used_ns: int) -> None:
        """Do nothing."""

    def learned(self) -> Learned | None:
        return None

    def demote(self, pages: Iterable[PageId], stamp_ns: int | None = None) -> None:
        """Do nothing: others may want them."""

    def hold(self, number: int, pages: Sequence[PageId], until_ns: int) -> Pinned:
        """Pin nothing: a pin is on this machine."""
        return Pinned(0, 0, 0)

    def let_loose(self, number: int) -> None:
        """Do nothing."""

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        """Nothing: a store cannot be asked what follows a key."""
        return set()
