"""Reading cold pages into the hot tier ahead of their use, on a thread of the store's own."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import Buffer, Page, PageId

_log = logging.getLogger(__name__)


class Prefetch:
    """A prefetch under way. `wait` blocks, `cancel` does not; neither raises."""

    def __init__(self, future: "Future[int]", cancelled: threading.Event) -> None:
        self._future = future
        self._cancelled = cancelled

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the pages are in, or until `timeout` seconds; True when it has ended."""
        done, _ = wait_for([self._future], timeout)
        return bool(done)

    def cancel(self) -> None:
        """Stop after the page that is being read; pages read so far stay."""
        self._cancelled.set()
        self._future.cancel()

    @property
    def pages(self) -> int:
        """Pages read so far by a prefetch that has ended; 0 before that."""
        if not self._future.done() or self._future.cancelled():
            return 0
        return self._future.result()


def start_prefetch(
    pool: ThreadPoolExecutor,
    hot: HotTier,
    cold: ColdTier | None,
    pages: Sequence[PageId],
    allocate: Callable[[int], Buffer],
) -> Prefetch:
    """Begin to read pages in order, passing over those that the hot tier has and evicting none of
    them; stops early when there is no room for one."""
    cancelled = threading.Event()
    future: Future[int]
    if cold is None or not pages:
        future = Future()
        future.set_result(0)
    else:
        try:
            future = pool.submit(_read, hot, cold, list(pages), allocate, cancelled)
        except RuntimeError:
            future = Future()
            future.set_result(0)
    return Prefetch(future, cancelled)


def _read(
    hot: HotTier,
    cold: ColdTier,
    pages: Sequence[PageId],
    allocate: Callable[[int], Buffer],
    cancelled: threading.Event,
) -> int:
    done = 0
    keep = frozenset(pages)
    for page in pages:
        if cancelled.is_set():
            break
        if hot.info(page) is not None:
            continue
        try:
            with cold.reading(page) as reader:
                if not hot.reserve(reader.meta.nbytes, keep).granted:
                    break
                try:
                    payload = allocate(reader.meta.nbytes)
                    reader.read_into([payload])
                except BaseException:
                    hot.release(reader.meta.nbytes)
                    raise
                done += hot.put(Page(reader.meta, payload), dirty=False)
        except PageError:
            break
        except Exception:
            _log.exception("prefetch stopped")
            break
    hot.touch(pages)
    return done
