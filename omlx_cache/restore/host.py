"""Restoring through host memory: hot pages are copied, cold ones are read into their targets.

Used on the CPU back end for everything. On a GPU it serves restores that are all on the disk and
not encoded: MLX lets the host write into arrays that the device has not used yet.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor as ThreadPool
from concurrent.futures import Future

import numpy as np

from omlx_cache.arrays.blank import blank_arrays
from omlx_cache.arrays.mlxio import (
    Array,
    HostView,
    allocate_payload,
    carrier,
    evaluate,
    host_view,
    payload_view,
    zeros,
)
from omlx_cache.pages.encoding import convert
from omlx_cache.restore.pages import PageFailed, Pages, is_direct
from omlx_cache.restore.plan import Copy, PageRead, Plan
from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.page import Page, PageId, TensorSpec

READ_AHEAD = 12
"""Cold pages in flight: enough to keep a disk busy, few enough that encoded ones stay small."""


def restore_on_host(
    plan: Plan,
    hot: Mapping[PageId, Page],
    pages: Pages,
    pool: ThreadPool,
    *,
    on_device: bool = False,
) -> dict[str, Array]:
    """Return the filled targets by tensor name, evaluated and owned; raises PageFailed.

    Peaks at the targets, and one page's dense size for each encoded page in turn.
    """
    direct: list[tuple[PageRead, Page]] = []
    encoded: list[tuple[PageRead, Page]] = []
    for read in plan.reads:
        page = hot.get(read.use.page)
        if page is not None:
            (direct if is_direct(read, page.meta) else encoded).append((read, page))
    arrays = _fresh(plan.targets, on_device=on_device)
    views = {name: host_view(array) for name, array in arrays.items() if array.size}
    list(pool.map(lambda item: _scatter(item[0], payload_view(item[1].payload), views), direct))
    for read, page in encoded:
        _decode(read, page, plan, views)
    _read_all([r for r in plan.reads if r.use.page not in hot], pages, plan, views, pool)
    if not on_device:
        # Last: the first write to fresh memory is the dear one, and the copies share that out.
        _clear_gaps(plan, views)
    return arrays


def _fresh(specs: Mapping[str, TensorSpec], *, on_device: bool) -> dict[str, Array]:
    """Return evaluated targets: zeros on a GPU, and undefined on the host, where they are cheap."""
    if not on_device:
        return blank_arrays(specs)
    arrays = {name: zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
    evaluate(list(arrays.values()))
    return arrays


def _clear_gaps(plan: Plan, views: Mapping[str, HostView]) -> None:
    """Zero what no page fills: room to grow must not show what lay in the memory before."""
    filled: dict[str, list[tuple[int, int]]] = {}
    for read in plan.reads:
        for copy in read.copies:
            stop = -1 if copy.hi < 0 else copy.to + copy.hi - copy.lo
            filled.setdefault(copy.tensor, []).append((copy.to, stop))
    for name, view in views.items():
        at = 0
        for start, stop in sorted(filled.get(name, ())):
            if stop < 0:
                break
            view[:, :, at:start] = 0
            at = max(at, stop)
        else:
            view[:, :, at:] = 0


def _decode(read: PageRead, page: Page, plan: Plan, views: Mapping[str, HostView]) -> None:
    """Bring one encoded page into the targets: it peaks at that page's dense size."""
    try:
        arrays = convert(page, read.expected, plan.codecs)
    except ForeignPage as error:
        raise PageFailed(read.use.page, error) from error
    sources = {name: host_view(array) for name, array in arrays.items() if array.size}
    for copy in read.copies:
        target, source = views.get(copy.tensor), sources.get(copy.tensor)
        if target is None or source is None:
            continue
        _copy(copy, source, target)


def _read_all(
    reads: Sequence[PageRead],
    pages: Pages,
    plan: Plan,
    views: Mapping[str, HostView],
    pool: ThreadPool,
) -> None:
    """Read cold pages, a few at a time; the first failure wins, after all reads have ended."""
    waiting: deque[tuple[PageRead, Future[Page | None]]] = deque()
    failed: PageFailed | None = None
    left = deque(reads)
    while left or waiting:
        while left and len(waiting) < READ_AHEAD and failed is None:
            read = left.popleft()
            waiting.append((read, pool.submit(_read_cold, read, pages, views)))
        if not waiting:
            break
        read, future = waiting.popleft()
        try:
            page = future.result()
            if page is not None and failed is None:
                _decode(read, page, plan, views)
                pages.keep(page)
        except PageError as error:
            failed = failed or PageFailed(read.use.page, error)
        except PageFailed as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _read_cold(read: PageRead, pages: Pages, views: Mapping[str, HostView]) -> Page | None:
    """Read a page into its targets; one that must be decoded first is returned instead."""
    with pages.reading(read.use.page) as reader:
        if not is_direct(read, reader.meta):
            encoded = allocate_payload(reader.meta.nbytes)
            reader.read_into([encoded])
            return Page(reader.meta, encoded)
        segments = _segments(read, views)
        if segments is not None:
            reader.read_into(segments)
            return None
        payload = np.empty(reader.meta.nbytes, dtype=np.uint8)
        reader.read_into([payload])
    _scatter(read, payload, views)
    return None


def _segments(read: PageRead, views: Mapping[str, HostView]) -> list[HostView] | None:
    """Return the memory that a page fills, in payload order, or None unless it fills it exactly."""
    by_tensor: dict[str, list[Copy]] = {}
    for copy in read.copies:
        by_tensor.setdefault(copy.tensor, []).append(copy)
    segments: list[HostView] = []
    for spec in read.expected:
        if spec.nbytes == 0:
            continue
        copies = by_tensor.get(spec.name, [])
        if len(copies) != 1:
            return None
        copy = copies[0]
        view = views[spec.name]
        if copy.hi < 0:
            segments.append(view.reshape(-1))
            continue
        tokens = spec.shape[2]
        if (copy.lo, copy.hi) != (0, tokens):
            return None
        outer = spec.shape[0] * spec.shape[1]
        rows = view.reshape(outer, view.shape[2], -1)
        segments += [rows[o, copy.to : copy.to + tokens].reshape(-1) for o in range(outer)]
    return segments


def _scatter(read: PageRead, payload: HostView, views: Mapping[str, HostView]) -> None:
    """Copy a payload's tensors to their targets; targets without a view are passed over."""
    offset = 0
    tensors: dict[str, tuple[TensorSpec, int]] = {}
    for spec in read.expected:
        tensors[spec.name] = (spec, offset)
        offset += spec.nbytes
    for copy in read.copies:
        spec, start = tensors[copy.tensor]
        target = views.get(copy.tensor)
        if target is None or spec.nbytes == 0:
            continue
        source = payload[start : start + spec.nbytes].view(carrier(spec.dtype)).reshape(spec.shape)
        _copy(copy, source, target)


def _copy(copy: Copy, source: HostView, target: HostView) -> None:
    if copy.hi < 0:
        target[...] = source
    else:
        target[:, :, copy.to : copy.to + copy.hi - copy.lo] = source[:, :, copy.lo : copy.hi]
