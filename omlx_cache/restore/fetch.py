"""Reading the cold pages of a restore: each once, in order, and no more after one has failed."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from omlx_cache.arrays.blank import blank_bytes
from omlx_cache.arrays.mlxio import HostView, allocate_payload, on_host, writable_view
from omlx_cache.restore.plan import PageFailed, PageRead, is_direct
from omlx_cache.restore.source import PageSource
from omlx_cache_storage.errors import PageError, PageUnreadable
from omlx_cache_storage.interrupts import result_of
from omlx_cache_storage.page import Page, PageId

READ_AHEAD = 12
"""Cold pages asked for at a time: enough to keep a disk busy, few enough that encoded ones stay
small."""


class Targets(Protocol):
    """Buffers that pages go into: `segments` is the memory that a page fills, None unless it fills
    it exactly, and `note` says that it did."""

    def segments(self, read: PageRead) -> list[HostView] | None: ...
    def note(self, read: PageRead) -> None: ...
    def take(self, read: PageRead, page: Page) -> bool: ...


def fetch(source: PageSource, read: PageRead, targets: Targets | None = None) -> Page | None:
    """Read one page and return it, or None when its bytes went straight into `targets`.

    Blocks on the disk. The page goes to the hot tier where memory is free; without `targets` it
    is a payload of its own in any case. Joins a prefetch that is reading it. Raises PageFailed.
    """
    page = read.use.page
    try:
        joined = _joined(source, page)
        if joined is not None and joined.meta.held == read.use.info.held:
            return joined
        return _read(source, read, targets)
    except PageError as error:
        raise PageFailed(page, error) from error


def _joined(source: PageSource, page: PageId) -> Page | None:
    """Wait for a prefetch's read of a page, which began before ours would."""
    coming = source.being_read(page)
    return source.held(page) if coming is None else coming.result()


def _read(source: PageSource, read: PageRead, targets: Targets | None) -> Page | None:
    reserved = 0
    try:
        with source.reading(read.use.page) as reader:
            meta = reader.meta
            if meta.held != read.use.info.held:
                # Sound, and no misfit: a fuller one, which covers other tokens, took its place.
                raise PageUnreadable("the page was replaced since it was looked up")
            direct = is_direct(read, meta)
            if source.reserve(meta.nbytes):
                reserved = meta.nbytes
            elif targets is not None and direct:
                segments = targets.segments(read)
                if segments is not None:
                    reader.read_into(segments)
                    targets.note(read)
                    return None
            payload = blank_bytes(meta.nbytes) if on_host() else allocate_payload(meta.nbytes)
            reader.read_into([writable_view(payload)])
        page = Page(meta, payload)
        if reserved:
            reserved = 0
            source.keep(page)
        return page
    finally:
        if reserved:
            source.release(reserved)


def fetch_all(
    source: PageSource,
    reads: Sequence[PageRead],
    take: Callable[[PageRead, Page], object],
    targets: Targets | None = None,
) -> None:
    """Read pages on the store's threads, and give each to `take` here, in order.

    With `targets`, pages that need no decoding go there instead. After a page has failed no deeper
    one is begun. Returns or raises (PageFailed, for the first page that failed) after every read
    has ended: nothing writes into `targets` later.
    """
    source.withdraw([read.use.page for read in reads])
    failing = _FirstFailure(len(reads))

    def one(index: int) -> Page | None:
        if index > failing.index:
            return None
        try:
            page = fetch(source, reads[index], targets)
            if page is None or targets is None or not is_direct(reads[index], page.meta):
                return page
            targets.take(reads[index], page)
            return None
        except BaseException:
            failing.note(index)
            raise

    under_way: deque[Future[Page | None]] = deque()
    error: BaseException | None = None
    begun = 0
    for read in reads:
        while begun < len(reads) and len(under_way) < READ_AHEAD and error is None:
            under_way.append(source.read_pool.submit(one, begun))
            begun += 1
        if not under_way:
            break
        try:
            page = result_of(under_way.popleft())
            if page is not None and error is None:
                take(read, page)
        except Exception as raised:
            failing.note(0)
            error = error or raised
        except BaseException:
            # An interrupt: nobody waits for the others, whose memory the views keep alive.
            failing.note(-1)
            raise
    if error is not None:
        raise error


class _FirstFailure:
    """The lowest index that failed; `_lock` guards `index` against two failures at once."""

    def __init__(self, index: int) -> None:
        self._lock = threading.Lock()
        self.index = index

    def note(self, index: int) -> None:
        with self._lock:
            self.index = min(self.index, index)
