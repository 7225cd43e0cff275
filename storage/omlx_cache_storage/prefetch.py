"""Reading cold pages into free memory ahead of their use, on a thread of the store's own. It evicts
nothing, and leaves to a restore what that reads itself."""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future

from omlx_cache_storage.calls import (
    SECONDS,
    Arguments,
    is_timeout,
    uninterrupted,
    wait_in_turns,
)
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.io_threads import Read, ReaderPool, progress
from omlx_cache_storage.page import Buffer, OpenPage, Page, PageId, PageMeta
from omlx_cache_storage.tiers import Tiers

_log = logging.getLogger(__name__)


def read_page(
    tiers: Tiers,
    page: PageId,
    reserve: Callable[[PageMeta], Reservation],
    fill: Callable[[OpenPage, Reservation], Buffer | None],
) -> Page | None:
    """Open a page and read it by `fill`, which gets the reservation; with room, memory has the page
    then. None when `fill` returned no payload. Blocks on the disk; raises PageError, with nothing
    reserved. A page that leaves the disk meanwhile, by `clear`, does not enter memory."""
    room, disk = Reservation(), tiers.cold or ()
    was_here = page in disk

    def has_left() -> bool:
        return was_here and (meta.namespace in tiers.clearing or page not in disk)

    try:
        with tiers.reading(page) as reader:
            meta = reader.meta
            room = reserve(meta)
            payload = fill(reader, room)
        if payload is None:
            return None
        read = Page(meta, payload)
        if room and not has_left():
            tiers.put(read, room)
            # Again: a clear that began before that may have looked into memory already.
            if has_left() and tiers.held(page) is read:
                tiers.hot.discard([page], None)
        return read
    finally:
        room.release()


class Prefetch:
    """A prefetch in flight. `wait` blocks, `cancel` does not; neither raises."""

    def __init__(self, pages: Sequence[PageId], arguments: Arguments) -> None:
        self._arguments = arguments
        self._wanted = tuple(pages)
        # Written by the reading thread alone, read by any.
        self._count = 0
        self._withdrawn: set[PageId] = set()
        self._cancelled = threading.Event()
        self._ended = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has ended, or for `timeout` seconds; True when it has ended."""
        timeout = self._arguments.known("timeout", timeout, is_timeout, 0.0, SECONDS)
        with uninterrupted:
            return wait_in_turns(self._ended.wait, timeout)

    @uninterrupted
    def cancel(self) -> None:
        self._cancelled.set()

    @property
    def pages(self) -> int:
        return self._count if self._ended.is_set() else 0


class Prefetcher:
    """Runs prefetches one after the other, into free memory only. Any thread may call.

    `_lock` guards `_open` (prefetches that have not ended, each with what a restore reads itself)
    and `_reading`; no I/O under it.
    """

    def __init__(self, tiers: Tiers) -> None:
        self._source = tiers
        self._pool = ReaderPool(1, "omlx-cache-prefetch")
        self._lock = threading.Lock()
        self._open: set[Prefetch] = set()
        self._reading: dict[PageId, Future[Page | None]] = {}

    def start(self, pages: Sequence[PageId], allocate: Callable[[int], Buffer]) -> Prefetch:
        """Begin to read pages in order, passing over pages of the hot tier. It ends early when
        there is no free room for a page, or when one cannot be read."""
        prefetch = Prefetch(pages, self._source.arguments)
        if not (pages and self._source.hot.retain) or (
            self._source.cold is None and self._source.remote is None
        ):
            prefetch._ended.set()
            return prefetch
        with self._lock:
            self._open.add(prefetch)
        try:
            self._pool.submit(self._run, prefetch, allocate)
        except RuntimeError:
            self._end(prefetch)
        return prefetch

    def withdraw(self, pages: Collection[PageId]) -> None:
        """Leave pages alone that a restore is about to read; reads in flight go on."""
        with self._lock:
            for prefetch in self._open:
                prefetch._withdrawn.update(pages)

    def being_read(self, page: PageId) -> "Future[Page | None] | None":
        """Return the read of a page that is in flight; its result is None if it failed."""
        with self._lock:
            return self._reading.get(page)

    def cancel_all(self) -> None:
        with self._lock:
            prefetches = list(self._open)
        for prefetch in prefetches:
            prefetch.cancel()

    def shutdown(self, timeout: float) -> bool:
        """End every prefetch; False when a read is still waiting for the disk by then. Its thread
        is left behind, and keeps no process from ending."""
        self.cancel_all()
        ended = self._pool.stop(max(0.0, timeout))
        with self._lock:
            left = list(self._open)
        for prefetch in left:
            self._end(prefetch)
        return ended

    def _run(self, prefetch: Prefetch, allocate: Callable[[int], Buffer]) -> None:
        try:
            for page in prefetch._wanted:
                if prefetch._cancelled.is_set() or not self._read(prefetch, page, allocate):
                    break
            self._source.hot.touch(prefetch._wanted, used=False)
        except Exception:
            _log.exception("prefetch stopped")
        finally:
            self._end(prefetch)

    def _read(self, prefetch: Prefetch, page: PageId, allocate: Callable[[int], Buffer]) -> bool:
        if self._source.hot.info(page) is not None:
            return True
        coming: Future[Page | None] = Read(progress())
        with self._lock:
            if page in prefetch._withdrawn:
                return True
            self._reading[page] = coming

        def fill(reader: OpenPage, room: Reservation) -> Buffer | None:
            if not room:
                return None
            payload = allocate(reader.meta.nbytes)
            reader.read_into([payload])
            return payload

        came: Page | None = None
        try:
            # The page is in the hot tier before its read is no longer to be seen.
            came = read_page(
                self._source,
                page,
                lambda meta: self._source.hot.reserve(meta.nbytes, evict=False),
                fill,
            )
            prefetch._count += came is not None and self._source.hot.get(page) is came
        except PageError:
            return False
        finally:
            with self._lock:
                del self._reading[page]
            # Readers that wait for the page get it, whether memory retains it or not.
            coming.set_result(came)
        return came is not None

    def _end(self, prefetch: Prefetch) -> None:
        with self._lock:
            self._open.discard(prefetch)
        prefetch._ended.set()


class ReadingTiers(Tiers):
    """Tiers with the threads that read their pages: those of `read_pool` wait for the disk, those
    of `copy_pool` for memory only. Its constructor's caller sets all three."""

    read_pool: ReaderPool
    copy_pool: ReaderPool
    prefetcher: Prefetcher
