"""Reading the cold pages of a restore: each once, in order, and no more after one has failed."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from omlx_cache.arrays.mlxio import (
    HostView,
    allocate_payload,
    blank_bytes,
    on_device,
    on_host,
    writable_view,
)
from omlx_cache.restore.host import HostTargets
from omlx_cache.restore.plan import PageFailed, PageRead, batches, is_direct
from omlx_cache.restore.source import PageSource
from omlx_cache_storage.errors import PageError, PageUnreadable
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.page import Buffer, Page, PageId
from omlx_cache_storage.readers import came as wait_for
from omlx_cache_storage.readers import result_along

READ_AHEAD = 12
"""Cold pages asked for at a time: enough to keep a disk busy, few enough that encoded ones stay
small."""
READ_TOGETHER = 32
"""Small pages that one task reads, `READ_BYTES` of them at most: reading one is Python's work more
than the disk's, and threads that are at that together hold each other up."""
READ_BYTES = 1 << 20


def fetch(source: PageSource, read: PageRead, targets: HostTargets | None = None) -> Page | None:
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
    return source.held(page) if coming is None else result_along(coming)


def _read(source: PageSource, read: PageRead, targets: HostTargets | None) -> Page | None:
    room = Reservation()
    try:
        with source.reading(read.use.page) as reader:
            meta = reader.meta
            if meta.held != read.use.info.held:
                # Sound, and no misfit: a fuller one, which covers other tokens, took its place.
                raise PageUnreadable("the page was replaced since it was looked up")
            direct = is_direct(read, meta)
            room = source.reserve(meta.nbytes, read.use.page)
            if not room and targets is not None and direct:
                segments = targets.segments(read)
                if segments is not None:
                    reader.read_into(segments)
                    targets.note(read)
                    return None
            # What is to be decoded is MLX's to read too.
            lasting = bool(room) or targets is None or not direct
            payload, view = _memory(meta.nbytes, lasting=lasting)
            reader.read_into([view])
        page = Page(meta, on_device(payload) if lasting else payload)
        if room:
            source.put(page, room)
        return page
    finally:
        room.release()


def _memory(nbytes: int, *, lasting: bool) -> tuple[Buffer, HostView]:
    """Return memory for a payload and a view to fill it by: MLX's own if it is to stay."""
    if not lasting:
        payload = np.empty(nbytes, dtype=np.uint8)
        return payload, payload
    array = blank_bytes(nbytes) if on_host() else allocate_payload(nbytes)
    return array, writable_view(array)


class _Came(NamedTuple):
    """What a task has read and did not put into its place, up to the first page that failed;
    `ended` counts those that it did put there."""

    reads: list[PageRead]
    pages: dict[PageId, Page]
    error: BaseException | None
    ended: list[PageRead]

    @classmethod
    def nothing(cls, error: BaseException | None = None) -> "_Came":
        return cls([], {}, error, [])


def fetch_all(
    source: PageSource,
    reads: Sequence[PageRead],
    take_all: Callable[[Sequence[PageRead], Mapping[PageId, Page]], object],
    targets: HostTargets | None = None,
    *,
    step_bytes: int = 2 * READ_BYTES,
) -> None:
    """Read pages on the store's threads, and give them to `take_all` here, in order, some
    `step_bytes` of them at a time.

    With `targets`, large pages that need no decoding go there instead. After a page has failed no
    deeper one is begun. Returns or raises (PageFailed, for the first page that failed) after every
    read has ended: nothing writes into `targets` later. But a disk that hangs is not waited for
    (PageUnanswered): then some reads may still write where their pages belong.
    """
    pages = [read.use.page for read in reads]
    source.withdraw(pages)
    expected = source.expect(pages)
    try:
        _fetch_all(source, reads, take_all, targets, step_bytes)
    finally:
        expected.close()


def _fetch_all(
    source: PageSource,
    reads: Sequence[PageRead],
    take_all: Callable[[Sequence[PageRead], Mapping[PageId, Page]], object],
    targets: HostTargets | None,
    step_bytes: int,
) -> None:
    failing = _FirstFailure(len(reads))

    def bring(first: int, batch: Sequence[PageRead], came: _Came) -> _Came:
        for index, read in enumerate(batch, first):
            if index > failing.index:
                break
            try:
                page = fetch(source, read, targets)
                if page is None:
                    came.ended.append(read)
                    continue
                # Decoding takes longer than reading: it is done here, by several.
                together = len(batch) > 1 and is_direct(read, page.meta)
                if targets is not None and not together:
                    targets.take_all([read], {read.use.page: page})
                    came.ended.append(read)
                    continue
            except BaseException as error:
                failing.note(index)
                return came._replace(error=error)
            # In this order: if it hangs later, others look.
            came.pages[read.use.page] = page
            came.reads.append(read)
        return came

    left = deque(batches(reads, READ_TOGETHER, READ_BYTES))
    under_way: deque[tuple[Future[_Came], Sequence[PageRead], _Came]] = deque()
    begun = nbytes = 0
    came = _Came.nothing()
    hung: PageFailed | None = None
    while under_way or (left and came.error is None):
        while left and len(under_way) * len(left[0]) < READ_AHEAD and came.error is None:
            task = left.popleft(), _Came.nothing()
            under_way.append((source.read_pool.submit(bring, begun, *task), *task))
            begun += len(task[0])
        try:
            read, batch, brought = under_way.popleft()
            if wait_for(read):
                more = read.result()
            else:
                failing.note(-1)
                under_way.clear()
                reads = list(brought.reads)
                page = batch[min(len(reads) + len(brought.ended), len(batch) - 1)].use.page
                hung = PageFailed(page, source.unanswered(page))
                more = _Came(reads, dict(brought.pages), hung, [])
            if came.error is None:
                came = _Came(came.reads + more.reads, came.pages | more.pages, more.error, [])
                nbytes += sum(page.meta.nbytes for page in more.pages.values())
            if nbytes >= step_bytes or not under_way:
                take_all(came.reads, came.pages)
                came, nbytes = _Came.nothing(came.error), 0
        except Exception as raised:
            # Of a page that comes before all that were not taken.
            failing.note(0)
            came = _Came.nothing(raised)
        except BaseException:
            # An interrupt: nobody waits for the others, whose memory the views keep alive.
            failing.note(-1)
            raise
    # What may still be written counts more than what failed.
    error = hung or came.error
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
