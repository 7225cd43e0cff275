"""Carrying out a plan: hot pages are copied, cold pages are read straight into the targets.

Targets are allocated once at their final size, so a restore peaks at about what it delivers.
On the CPU back end every copy is a host copy. On a GPU the hot part is a few large
concatenations, and only cold pages are written through host views.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor as ThreadPool
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from omlx_cache.mlxio import Array, HostView, carrier, evaluate, host_view, payload_view, zeros
from omlx_cache.restore.device import join_hot
from omlx_cache.restore.plan import Copy, PageRead, Plan
from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.page import Page, PageId, PageMeta, TensorSpec
from omlx_cache_storage.reader import PageReader


class Pages(Protocol):
    """Where an executor gets pages from."""

    def reading(self, page: PageId) -> AbstractContextManager[PageReader]: ...


class PageFailed(Exception):
    """A page could not be used; the restore must be planned again without it."""

    def __init__(self, page: PageId, cause: PageError) -> None:
        super().__init__(str(cause))
        self.page = page
        self.cause = cause


def execute(
    plan: Plan,
    hot: Mapping[PageId, Page],
    pages: Pages,
    pool: ThreadPool,
    *,
    on_device: bool,
) -> dict[str, Array]:
    """Return the filled target arrays by tensor name, evaluated and owned.

    Blocks on the disk for pages that are not in `hot`. Raises PageFailed; nothing is left behind.
    """
    hot_reads = [read for read in plan.reads if read.use.page in hot]
    cold_reads = [read for read in plan.reads if read.use.page not in hot]
    for read in hot_reads:
        check_page(read, hot[read.use.page].meta)
    made: dict[str, Array] = {}
    if on_device:
        made = join_hot(plan, [(read, hot[read.use.page]) for read in hot_reads])
    fresh = {
        name: zeros(spec.shape, spec.dtype)
        for name, spec in plan.targets.items()
        if name not in made
    }
    evaluate(list(fresh.values()))
    arrays = {**made, **fresh}
    views = {name: host_view(array) for name, array in arrays.items() if array.size}
    for read in hot_reads:
        payload = payload_view(hot[read.use.page].payload)
        _scatter(read, payload, {n: v for n, v in views.items() if n in fresh})
    _read_all(cold_reads, pages, views, pool)
    return {name: arrays[name] for name in plan.targets}


def check_page(read: PageRead, meta: PageMeta) -> None:
    """Raise PageFailed unless a page has exactly the tensors that the plan expects."""
    if meta.tensors != read.expected:
        raise PageFailed(
            read.use.page, ForeignPage("the page's tensors differ from those it should join")
        )


def _read_all(
    reads: Sequence[PageRead], pages: Pages, views: Mapping[str, HostView], pool: ThreadPool
) -> None:
    futures = [(read, pool.submit(_read_cold, read, pages, views)) for read in reads]
    failed: PageFailed | None = None
    for read, future in futures:
        try:
            future.result()
        except PageError as error:
            failed = failed or PageFailed(read.use.page, error)
        except PageFailed as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _read_cold(read: PageRead, pages: Pages, views: Mapping[str, HostView]) -> None:
    with pages.reading(read.use.page) as reader:
        check_page(read, reader.meta)
        segments = _segments(read, views)
        if segments is not None:
            reader.read_into(segments)
            return
        payload = np.empty(reader.meta.nbytes, dtype=np.uint8)
        reader.read_into([payload])
    _scatter(read, payload, views)


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
        if copy.hi < 0:
            target[...] = source
        else:
            target[:, :, copy.to : copy.to + copy.hi - copy.lo] = source[:, :, copy.lo : copy.hi]
