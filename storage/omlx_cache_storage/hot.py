"""The hot tier: pages in memory, under a byte budget."""

import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from omlx_cache_storage.index import PageIndex, Tail
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.names import parent_hint
from omlx_cache_storage.page import Page, PageId, PageInfo, PageMeta
from omlx_cache_storage.recency import ChainRecency


@dataclass(slots=True)
class _Held:
    """A page in memory. `pins`: writes that still need it. `dirty`: the disk lacks it."""

    page: Page
    dirty: bool
    pins: int = 0

    @property
    def position(self) -> int:
        return self.page.meta.position

    @property
    def held(self) -> int:
        return self.page.meta.held

    @property
    def tail(self) -> bool:
        return self.page.meta.tail

    @property
    def hint(self) -> bytes:
        return parent_hint(self.page.meta.parent)


@dataclass(frozen=True, slots=True)
class HotUsage:
    """Bytes and pages at one moment."""

    pages: int
    nbytes: int
    peak_bytes: int
    limit_bytes: int
    evicted_pages: int


class HotTier:
    """Holds live pages; `bytes held + bytes reserved <= limit_bytes` at every moment.

    Mutable: every field below `_lock`, which guards them; any thread may call. No I/O here.
    A pinned page (queued for the disk) is never evicted. With `keep_dirty` a page that the disk
    lacks is not evicted either, but named for writing first.
    """

    def __init__(self, limit_bytes: int, *, keep_dirty: bool = False, retain: bool = True) -> None:
        self.limit_bytes = limit_bytes
        self._keep_dirty = keep_dirty
        self._retain = retain
        self._lock = threading.Lock()
        self._index: PageIndex[_Held] = PageIndex()
        self._order = ChainRecency()
        self._bytes = 0
        self._reserved = 0
        self._dirty_bytes = 0
        self._peak = 0
        self._evicted = 0

    def reserve(self, nbytes: int, keep: Collection[PageId] = ()) -> tuple[bool, list[PageId]]:
        """Set bytes aside for a page about to be made, evicting others but those in `keep`.

        Returns whether it worked, and the dirty pages that stood in the way.
        """
        with self._lock:
            victims, dirty = self._victims(nbytes, keep)
            if victims is None:
                return False, dirty
            for page in victims:
                self._drop(page)
                self._evicted += 1
            self._reserved += nbytes
            self._peak = max(self._peak, self._bytes + self._reserved)
            return True, dirty

    def release(self, nbytes: int) -> None:
        """Give a reservation back."""
        with self._lock:
            self._reserved -= nbytes

    def put(self, page: Page, *, dirty: bool, pinned: bool = False) -> None:
        """Take a page whose payload bytes were reserved; the reservation is consumed."""
        nbytes = page.meta.nbytes
        with self._lock:
            self._reserved -= nbytes
            old = self._index.get(page.meta.id)
            pins = old.pins if old is not None else 0
            self._drop(page.meta.id)
            self._index.put(page.meta.id, _Held(page, dirty, pins + pinned))
            self._order.add(page.meta.id)
            self._bytes += nbytes
            self._dirty_bytes += nbytes * dirty

    def get(self, page: PageId) -> Page | None:
        """Return the page; it stays valid for as long as the caller holds it."""
        with self._lock:
            held = self._index.get(page)
            return None if held is None else held.page

    def info(self, page: PageId) -> PageInfo | None:
        with self._lock:
            held = self._index.get(page)
            if held is None:
                return None
            tier = "pending" if held.pins else "hot"
            return PageInfo(held.position, held.held, held.page.meta.nbytes, tier)

    def pin(self, page: PageId) -> Page | None:
        """Keep a page in memory until `unpin`, and return it."""
        with self._lock:
            held = self._index.get(page)
            if held is None:
                return None
            held.pins += 1
            return held.page

    def unpin(self, page: PageId, *, written: bool) -> None:
        """Undo one `pin`; `written` says that the disk has the page now."""
        with self._lock:
            held = self._index.get(page)
            if held is None:
                return
            held.pins = max(0, held.pins - 1)
            if written and held.dirty:
                held.dirty = False
                self._dirty_bytes -= held.page.meta.nbytes
            if not self._retain and not held.pins:
                self._drop(page)

    def is_dirty(self, page: PageId) -> bool:
        """True when the page is here, the disk lacks it, and no write is queued."""
        with self._lock:
            held = self._index.get(page)
            return held is not None and held.dirty and not held.pins

    def dirty(self, beyond_bytes: int = 0) -> list[PageId]:
        """Return unpinned dirty pages, next to be evicted first, until no more than
        `beyond_bytes` of dirty bytes are left unnamed."""
        named: list[PageId] = []
        with self._lock:
            left = self._dirty_bytes
            for page in self._order:
                if left <= beyond_bytes:
                    break
                held = self._index.get(page)
                if held is not None and held.dirty:
                    left -= held.page.meta.nbytes
                    if not held.pins:
                        named.append(page)
        return named

    def touch(self, chain: Sequence[PageId]) -> None:
        with self._lock:
            self._order.touch(chain)

    def demote(self, pages: Iterable[PageId]) -> None:
        with self._lock:
            self._order.demote(pages)

    def discard(self, page: PageId) -> None:
        """Forget a page, pinned or not."""
        with self._lock:
            self._drop(page)

    def tails(self, parent: BlockKey) -> set[Tail]:
        with self._lock:
            return self._index.tails(parent)

    def metas(self) -> list[tuple[PageMeta, str]]:
        """Return what is held, each with `hot` or `pending`, the first to be evicted first."""
        with self._lock:
            found = []
            for page in self._order:
                held = self._index.get(page)
                if held is not None:
                    found.append((held.page.meta, "pending" if held.pins else "hot"))
            return found

    def usage(self) -> HotUsage:
        with self._lock:
            return HotUsage(
                len(self._index),
                self._bytes + self._reserved,
                self._peak,
                self.limit_bytes,
                self._evicted,
            )

    def check_integrity(self) -> None:
        """Assert that the byte counts, the index and the order agree."""
        with self._lock:
            entries = dict(self._index.items())
            held = sum(e.page.meta.nbytes for e in entries.values())
            dirty = sum(e.page.meta.nbytes for e in entries.values() if e.dirty)
            assert self._bytes == held, (self._bytes, held)
            assert self._dirty_bytes == dirty, (self._dirty_bytes, dirty)
            assert set(self._order) == set(entries)
            assert self._bytes + self._reserved <= self.limit_bytes

    def _victims(
        self, nbytes: int, keep: Collection[PageId]
    ) -> tuple[list[PageId] | None, list[PageId]]:
        """Decide what must leave to make room; None when it cannot be made."""
        excess = self._bytes + self._reserved + nbytes - self.limit_bytes
        victims: list[PageId] = []
        dirty: list[PageId] = []
        for page in self._order:
            if excess <= 0:
                break
            held = self._index.get(page)
            if held is None or held.pins or page in keep:
                continue
            if held.dirty and self._keep_dirty:
                dirty.append(page)
                continue
            victims.append(page)
            excess -= held.page.meta.nbytes
        return (None if excess > 0 else victims), dirty

    def _drop(self, page: PageId) -> None:
        held = self._index.pop(page)
        if held is not None:
            self._order.discard(page)
            self._bytes -= held.page.meta.nbytes
            self._dirty_bytes -= held.page.meta.nbytes * held.dirty
