"""A remote store in a simulation: which pages it has, and what leaves when there is no room."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from omlx_cache_storage.page import PageId


class SimulatedRemote:
    """Holds `limit` pages, without one all; least recently used leaves first, as of the engines
    that people run. Mutable: what it holds, and its counts. Use it on one thread."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._pages: OrderedDict[PageId, None] = OrderedDict()
        self.taken_pages = 0
        self.peak_pages = 0

    def __len__(self) -> int:
        return len(self._pages)

    def leading(self, pages: Sequence[PageId]) -> int:
        """Return how many leading pages it has, which are read and so used."""
        count = next((n for n, page in enumerate(pages) if page not in self._pages), len(pages))
        self._use(pages[:count])
        return count

    def add(self, pages: Sequence[PageId]) -> None:
        """Take a chain's pages that it has not; what it has is not sent again."""
        new = [page for page in pages if page not in self._pages]
        for page in new:
            self._pages[page] = None
        self.taken_pages += len(new)
        self._use(page for page in pages if page in self._pages)
        while self._limit is not None and len(self._pages) > self._limit:
            self._pages.popitem(last=False)
        self.peak_pages = max(self.peak_pages, len(self._pages))

    def _use(self, pages: Iterable[PageId]) -> None:
        # The root last: of a chain the deep end is the first to leave.
        for page in reversed(list(pages)):
            self._pages.move_to_end(page)
