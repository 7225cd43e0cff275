"""Pages of this machine's own tiers, as they are sent to others."""

from omlx_cache_storage.cold.held import HeldPages
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import Page, PageId
from omlx_cache_storage.remote.uploads import HeldHere


class OwnPages:
    """What the disk has as it is there, else what memory has. Any thread; waits for the disk."""

    def __init__(self, hot: HotTier | None, cold: HeldPages | None) -> None:
        self._hot = hot
        self._cold = cold

    def held_by(self, page: PageId) -> HeldHere | None:
        """Return what is known of a page, None for one that is gone; reads nothing."""
        stored = None if self._cold is None else self._cold.stored(page)
        if stored is not None:
            return HeldHere(stored.namespace, stored.held)
        held = None if self._hot is None else self._hot.get(page)
        return None if held is None else HeldHere(held.meta.namespace, held.meta.held)

    def as_stored(self, page: PageId) -> Page | None:
        """Return a page, packed if its file is, and checked; None for one that is gone. Raises
        PageError."""
        if self._cold is not None and self._cold.stored(page) is not None:
            with self._cold.reading(page) as reader:
                return reader.read_stored()
        return None if self._hot is None else self._hot.get(page)
