"""What is known of the use of a cold tier's pages: recency, demotion, pins."""

import contextlib
from collections.abc import Iterable, Sequence

from omlx_cache_storage.cold.changes import Demoted, Removed
from omlx_cache_storage.cold.records import StoredPage
from omlx_cache_storage.cold.shared import SharedPages
from omlx_cache_storage.hints import Pinned
from omlx_cache_storage.page import PageId
from omlx_cache_storage.recency import SUPERSEDED_NS


class MarkedPages(SharedPages):
    """Pages with the times at which they were used: the modification times of their files, so that
    recency is everybody's. The disk learns of it from `_record_recency`, and other processes when
    they are about to evict a page; of demoted ones at once.

    `_lock` guards `limit_bytes`, the directory's budget, as well.
    """

    limit_bytes: int

    def touch(
        self,
        chain: Iterable[PageId],
        stamp_ns: int | None = None,
        since_ns: int = 0,
        *,
        used: bool = True,
    ) -> None:
        """Mark pages as used at a stamp of the clock, now by default, but those that were used
        later than that and than `since_ns`. `used`: it is a request that wants them.

        The disk learns it from `settle`.
        """
        with self._lock:
            stamp_ns = self._clock.now() if stamp_ns is None else stamp_ns
            loose = self._loose(chain)
            self._moved(self._contents.touch(loose, stamp_ns, since_ns, used=used), stamp_ns)

    def demote(self, pages: Iterable[PageId], stamp_ns: int | None = None) -> None:
        """Make pages the first to be evicted, the deepest of them first, after a restart too."""
        with self._lock:
            stamp_ns = self._clock.superseded() if stamp_ns is None else stamp_ns
            self._moved(self._contents.place(self._loose(pages), stamp_ns), stamp_ns)

    def _moved(self, pages: Iterable[PageId], stamp_ns: int) -> None:
        """Note that pages have another stamp: the disk is to learn it."""
        self._unrecorded.update(pages)
        if self._refused_rank is not None and stamp_ns < self._refused_rank[0]:
            self._refused_rank = None

    def _loose(self, pages: Iterable[PageId]) -> Iterable[PageId]:
        return self._pins.loose(pages, self._clock.now()) if self._pins else pages

    def hold(self, number: int, pages: Sequence[PageId], until_ns: int) -> Pinned:
        """Keep pages until a time, those that come later too, as far as the tier's share for that
        goes: root first. Not over a restart, which takes them for used then."""
        with self._lock:
            self._pins.add(number, pages, until_ns, self._clock.now())
            found = [s for page in pages if (s := self._contents.get(page)) is not None]
            nbytes = count = 0
            for stored in found:
                kept_ns = self._hold(stored)
                if kept_ns:
                    self._moved(self._contents.touch([stored.name.id], kept_ns), kept_ns)
                    count, nbytes = count + 1, nbytes + stored.cost
            return Pinned(len(found), count, nbytes)

    def let_loose(self, number: int) -> None:
        """End what `hold` began: the pages count as used now."""
        with self._lock:
            now = self._clock.now()
            for page, until_ns in self._pins.remove(number).items():
                stamp_ns = until_ns or now
                self._moved(self._contents.place([page], stamp_ns), stamp_ns)
            self._refused_rank = None

    def _hold(self, stored: StoredPage) -> int:
        """Return until when a page is pinned, 0 for one that is not."""
        if not self._pins:
            return 0
        now = self._clock.now()
        return self._pins.hold(stored.name.id, stored.cost, self.limit_bytes, now)

    def _is_pinned(self, page: PageId) -> bool:
        return bool(self._pins) and self._pins.holds(page, self._clock.now())

    def _record_recency(self) -> None:
        """Give files the times at which their pages were used; raises nothing."""
        with self._lock:
            pages, self._unrecorded = self._unrecorded, set()
            used = [
                (stored, self._contents.stamp(page))
                for page in pages
                if (stored := self._contents.stored(page)) is not None
            ]
        demoted: dict[int, list[PageId]] = {}
        for stored, stamp_ns in used:
            path = self._path(stored)
            with contextlib.suppress(OSError):
                if stamp_ns <= SUPERSEDED_NS:
                    demoted.setdefault(stamp_ns, []).append(stored.name.id)
                elif (info := self._fs.own_file(path)) is None or info.st_mtime_ns >= stamp_ns:
                    # Somebody else has used it later.
                    continue
                self._fs.set_times(path, stamp_ns)
        if demoted:
            with contextlib.suppress(OSError), self._ledger.held():
                self._tell(*(Demoted(at, tuple(pages)) for at, pages in demoted.items()))

    def _catch_up(self, pages: Iterable[PageId]) -> bool:
        """Ask the files of pages that are about to leave when they were used, by whomever; True
        when that is news. The directory is held."""
        news = False
        for page in pages:
            with self._lock:
                stored = self._contents.stored(page)
                if stored is None or page in self._unrecorded:
                    continue
                stamp_ns = self._contents.stamp(page)
            info = self._fs.own_file(self._path(stored))
            if info is None:
                news = True
                with self._lock:
                    self._leave(stored, "removed")
                self._tell(Removed(stored, "removed"))
            elif info.st_mtime_ns > stamp_ns:
                with self._lock:
                    used_ns = min(info.st_mtime_ns, self._clock.now())
                    if used_ns > stamp_ns and page in self._contents:
                        self._contents.touch([page], used_ns, used=False)
                        news = True
        return news
