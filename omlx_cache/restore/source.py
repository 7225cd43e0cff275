"""What a restore asks of a store: all of it, so that nobody reaches through to a tier."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import Protocol

from omlx_cache.restore.lookup import PageView, RestorePoint
from omlx_cache_storage.errors import PageUnanswered
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import OpenPage, Page, PageId, PageInfo, PageMeta, Tail
from omlx_cache_storage.remote.lookups import Asked, Inquiry
from omlx_cache_storage.tiers import Expecting, TierView


class PageSource(PageView, Protocol):
    """A store as a restore sees it. Any thread may call; only `meta` and `reading` wait for a disk.

    `reserve` sets memory aside that nobody uses, and evicts nothing for it; `put` takes a page into
    that. `being_read` is the read of a page that a prefetch
    has begun; after `withdraw` no prefetch begins to read these pages. `expect` begins to read
    those that other machines have, for whoever opens them next. Those of `read_pool` wait
    for the disk, those of `copy_pool` for memory only.
    """

    @property
    def read_pool(self) -> Executor: ...
    @property
    def copy_pool(self) -> Executor: ...
    def held(self, page: PageId) -> Page | None: ...
    def meta(self, page: PageId) -> PageMeta: ...
    def unanswered(self, page: PageId) -> PageUnanswered: ...
    def reading(self, page: PageId) -> AbstractContextManager[OpenPage]: ...
    def reserve(self, nbytes: int, page: PageId | None = None) -> Reservation: ...
    def put(self, page: Page, room: Reservation) -> bool: ...
    def expect(self, pages: Sequence[PageId]) -> Expecting: ...
    def withdraw(self, pages: Collection[PageId]) -> None: ...
    def being_read(self, page: PageId) -> "Future[Page | None] | None": ...
    def touch(
        self,
        chain: Sequence[PageId],
        stamp_ns: int | None = None,
        besides: Callable[[TierView], Iterable[PageId]] = ...,
        since_ns: int = 0,
        *,
        used: bool = ...,
    ) -> None: ...
    def forget(self, page: PageId) -> None: ...


class InMemory:
    """The pages that need no disk: those in memory, and what a restore has read already.

    `pages` holds every page that was found, so that eviction takes none of them away between the
    walk and the copy. `filled` are pages whose bytes are where they belong already.
    """

    def __init__(
        self,
        source: PageSource,
        arrived: Mapping[PageId, Page],
        filled: Mapping[PageId, PageInfo],
    ) -> None:
        self._source = source
        self._arrived = arrived
        self._filled = filled
        self.pages: dict[PageId, Page] = {}

    @property
    def generation(self) -> int:
        return 0

    def refresh(self) -> bool:
        """False: what others wrote is on the disk."""
        return False

    @property
    def asks(self) -> bool:
        """False: what others have is not in memory."""
        return False

    def ask(self, inquiry: Inquiry, timeout: float | None = None) -> Asked:
        return Asked(news=False)

    def find_all(self, pages: Sequence[PageId]) -> Sequence[PageInfo | None]:
        return [self._find(page) for page in pages]

    def _find(self, page: PageId) -> PageInfo | None:
        filled = self._filled.get(page)
        if filled is not None:
            return filled
        held = self._arrived.get(page) or self._source.held(page)
        if held is None:
            return None
        self.pages[page] = held
        return PageInfo(held.meta.position, held.meta.held, held.meta.nbytes, "hot")

    def tails_of(self, parents: Sequence[BlockKey]) -> Collection[Tail]:
        return self._source.tails_of(parents)

    def hidden(self, pages: Sequence[PageId]) -> Mapping[PageId, str]:
        return self._source.hidden(pages)


def held_pages(
    source: PageSource, point: RestorePoint, arrived: Mapping[PageId, Page]
) -> dict[PageId, Page]:
    """Return the pages of a point that have arrived or are in memory now: while somebody has them,
    eviction cannot take them away."""
    found: dict[PageId, Page] = {}
    for use in point.all_uses:
        page = arrived.get(use.page) or source.held(use.page)
        if page is not None and page.meta.held == use.info.held:
            found[use.page] = page
    return found
