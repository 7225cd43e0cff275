"""The eviction order: least recently used, a chain's deep end before its root.

A page is useless without the pages before it, so a touch of a chain moves its deepest page
first and its root last: whatever leaves, leaves from the deep end. Measured on coding-agent
traces this lifts the hit rate from 0.514 to 0.683 at equal capacity (docs/design.md).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from omlx_cache_storage.page import PageId


class ChainRecency:
    """An order over page ids. Not thread-safe: its owner's lock guards it."""

    def __init__(self) -> None:
        self._order: OrderedDict[PageId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[PageId]:
        """Yield ids, the first to be evicted first."""
        return iter(self._order)

    def add(self, page: PageId) -> None:
        """Make a page the most recently used one."""
        self._order[page] = None
        self._order.move_to_end(page)

    def touch(self, chain: Sequence[PageId]) -> None:
        """Mark the pages of a chain, root first, as used; pages not held are passed over."""
        for page in reversed(chain):
            if page in self._order:
                self._order.move_to_end(page)

    def demote(self, pages: Iterable[PageId]) -> None:
        """Make pages the first to be evicted."""
        for page in pages:
            if page in self._order:
                self._order.move_to_end(page, last=False)

    def discard(self, page: PageId) -> None:
        self._order.pop(page, None)
