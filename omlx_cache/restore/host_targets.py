"""The buffers of a restore in host memory, filled page by page: on the CPU back end for everything,
on a GPU that shares the host's memory for restores that are all on the disk and not encoded."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from omlx_cache.arrays.mlxio import (
    TOKEN_AXIS,
    Array,
    HostView,
    carrier,
    host_views,
    owned_zeros,
    payload_view,
)
from omlx_cache.restore.decode import convert, decode_into
from omlx_cache.restore.plan import (
    PageFailed,
    PageRead,
    Plan,
    Span,
    Targets,
    batches,
    is_direct,
)
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, PageId

SEGMENT_BYTES = 4096
"""Pages of shorter pieces than this are read as a whole, and copied to their places after."""

DECODERS = 2
"""Threads that decode for a restore at a time: MLX gives each a stream of its own."""


class HostTargets(Targets):
    """The evaluated arrays that a plan fills.

    Any thread fills it; `arrays` hands them over when none does any more. Targets that a shorter
    plan wants alike are taken over from `before`, which it closes; with `apart` they are copied,
    since abandoned reads may still write into the old ones. `_guard`, not held while bytes are
    copied, guards `filled`, `_copying` and `_closed`.
    """

    def __init__(self, plan: Plan, *, before: Targets | None = None, apart: bool = False) -> None:
        old = before if isinstance(before, HostTargets) else None
        if old is not None:
            old.close()
        super().__init__(plan, old)
        self._guard = threading.Condition()
        self._copying = 0
        self._closed = False
        self._decoding = threading.BoundedSemaphore(DECODERS)
        self._arrays: dict[str, Array] = {}
        if old is not None and not apart:
            self._arrays = {name: old._arrays[name] for name in self.kept}
            old.let_go()
        fresh = {name: spec for name, spec in plan.targets.items() if name not in self._arrays}
        self._arrays |= owned_zeros(fresh)
        filled = {name: array for name, array in self._arrays.items() if array.size}
        views = host_views(list(filled.values()))
        self._views: dict[str, HostView] = dict(zip(filled, views, strict=True))
        if old is not None:
            for name in self.kept & old._views.keys():
                self._views[name][...] = old._views[name]

    def let_go(self) -> None:
        """Keep no memory: while a view lives, MLX copies an array that it would update in place."""
        self._views, self._arrays = {}, {}

    def segments(self, read: PageRead) -> list[memoryview] | None:
        """Return the memory that a page fills, in payload order; None unless it fills it exactly,
        in pieces that are worth it. The reads must end before the arrays are handed over."""
        if SEGMENT_BYTES * read.geometry.pieces > read.geometry.tensors.nbytes:
            return None
        held, stretches = read.use.info.held, read.geometry.stretches
        whole = [s for s in read.spans if s.hi < 0 or (s.lo, s.hi) == (0, held)]
        starts = {span.track: span.to for span in whole}
        if len(starts) < len(read.spans) or any(s.track not in starts for s in stretches):
            return None
        segments: list[memoryview] = []
        for stretch in stretches:
            for name in stretch.names:
                segments += _rows(self._views[name], stretch.shape, starts[stretch.track])
        return segments

    def take_all(self, reads: Sequence[PageRead], pages: Mapping[PageId, Page]) -> None:
        """Copy or decode pages into their places, unless it was closed; raises PageFailed. Decoding
        evaluates MLX, and takes a few MiB, of each of two threads."""
        views = self._views
        direct = [read for read in reads if is_direct(read, pages[read.use.page].meta)]
        with self._guard:
            if self._closed:
                return
            self._copying += 1
        try:
            for batch in batches(direct):
                spread(batch, [payload_view(pages[read.use.page].payload) for read in batch], views)
                self.note(batch)
            for read in reads:
                if read.use.page not in self.filled:
                    with self._decoding:
                        _decode(read, pages[read.use.page], self.plan, views)
                    self.note([read])
        finally:
            with self._guard:
                self._copying -= 1
                self._guard.notify_all()

    def close(self) -> None:
        """Take in no page that comes later, and wait for copies in memory that have begun, not for
        reads into the targets."""
        with self._guard:
            self._closed = True
            self._guard.wait_for(lambda: self._copying == 0)

    def arrays(self) -> dict[str, Array]:
        """Return the targets, zeros where no page goes. Every page must be in."""
        for name, gaps in self.gaps().items():
            for gap in gaps:
                self._views[name][:, :, gap] = 0
        arrays = self._arrays
        self.let_go()
        return arrays


def _rows(view: HostView, part: tuple[int, ...], start: int) -> list[memoryview]:
    flat: Any = view.reshape(-1).view(np.uint8)
    target = memoryview(flat)
    if view.shape == part:
        return [target]
    row = target.nbytes // (view.shape[0] * view.shape[1])
    width = row // view.shape[TOKEN_AXIS]
    first, size = start * width, part[TOKEN_AXIS] * width
    return [target[at : at + size] for at in range(first, target.nbytes, row)]


def _decode(read: PageRead, page: Page, plan: Plan, views: Mapping[str, HostView]) -> None:
    spans: dict[int, list[Span]] = {}
    for span in read.spans:
        spans.setdefault(span.track, []).append(span)
    wanted = {spec.name: spans.get(plan.tracks[spec.name], []) for spec in read.geometry.tensors}
    try:
        left = decode_into(views, page, read.geometry.tensors, wanted)
        for arrays in convert(page, left, plan.codecs):
            names = [name for name, array in arrays.items() if array.size]
            for name, source in zip(names, host_views([arrays[n] for n in names]), strict=True):
                for span in wanted[name]:
                    _copy(span, source, views[name])
    except ForeignPage as error:
        raise PageFailed(read.use.page, error, joins=True) from error


def _copy(span: Span, source: HostView, target: HostView) -> None:
    if span.hi < 0:
        target[...] = source
    else:
        target[:, :, span.to : span.to + span.hi - span.lo] = source[:, :, span.lo : span.hi]


def spread(
    batch: Sequence[PageRead], payloads: Sequence[HostView], views: Mapping[str, HostView]
) -> None:
    """Copy the payloads of a batch to their targets: one strided copy a tensor. Takes the size of
    the batch beside them if there are several."""
    first = batch[0]
    joined = np.concatenate(payloads) if len(batch) > 1 else payloads[0]
    table = joined.reshape(len(batch), -1)
    for span in first.spans:
        for stretch in first.geometry.of(span.track):
            size = stretch.nbytes * len(stretch.names)
            items = table[:, stretch.offset : stretch.offset + size].view(carrier(stretch.dtype))
            # Pages, tensors, then the axes of a tensor.
            block = items.reshape(len(batch), len(stretch.names), *stretch.shape)
            if span.hi < 0:
                for name, source in zip(stretch.names, block[0], strict=True):
                    views[name][...] = source
                continue
            # The pages come before the tokens: split so, a target's token axis is both.
            block = np.moveaxis(block[:, :, :, :, span.lo : span.hi], 0, 1 + TOKEN_AXIS)
            stop = span.to + len(batch) * (span.hi - span.lo)
            for name, source in zip(stretch.names, block, strict=True):
                views[name][:, :, span.to : stop].reshape(source.shape)[...] = source
