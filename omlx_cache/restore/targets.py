"""The buffers of a restore in host memory, filled page by page or a batch of pages at a time: on
the CPU back end for everything, on a GPU that shares the host's memory for restores that are all on
the disk and not encoded."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from omlx_cache.adapters.base import PAGED
from omlx_cache.arrays.mlxio import (
    CARRIERS,
    TOKEN_AXIS,
    Array,
    HostView,
    allocate_payload,
    host_views,
    on_device,
    owned_zeros,
    payload_view,
)
from omlx_cache.restore.decode import convert, decode_into
from omlx_cache.restore.plan import PageFailed, PageRead, Plan, Span, batches, is_direct
from omlx_cache_storage.errors import ForeignPage, PageError, PageGone
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.io_threads import result_along
from omlx_cache_storage.page import Buffer, OpenPage, Page, PageId, PageInfo, PageMeta
from omlx_cache_storage.prefetch import ReadingTiers, read_page

SEGMENT_BYTES = 4096
"""Pages of shorter pieces than this are read as a whole, and copied to their places after."""

DECODERS = 2
"""Threads that decode for a restore at a time: MLX gives each a stream of its own."""


class Targets:
    """The buffers of a plan, and the pages that are in them (`filled`). `kept` are the growing
    buffers that this plan wants like the one `before` it: a window has another order at another
    position, and a state is valid at one. Their room to grow must show no token of a longer plan.
    """

    def __init__(self, plan: Plan, before: "Targets | None") -> None:
        self.plan = plan
        self.kept: set[str] = set()
        self.filled: dict[PageId, PageInfo] = {}
        if before is not None:
            self.kept = {
                spec.name
                for leaf, fields, _ in plan.leaves
                for spec in (fields.values() if leaf.group == PAGED else ())
                if before.plan.targets.get(spec.name) == plan.targets[spec.name]
            }
            new = {plan.tracks[name] for name in plan.targets.keys() - self.kept}
            there = dict(before.filled)
            for read in plan.reads:
                if read.use.page in there and new.isdisjoint(span.track for span in read.spans):
                    self.note([read])

    def note(self, reads: Iterable[PageRead]) -> None:
        self.filled.update(map(attrgetter("use"), reads))


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
        fresh = dict(plan.targets)
        if old is not None and not apart:
            for name in self.kept:
                self._arrays[name] = old._arrays[name]
                del fresh[name]
            old._views, old._arrays = {}, {}
        self._arrays |= owned_zeros(fresh)
        filled = {name: array for name, array in self._arrays.items() if array.size}
        views = host_views(list(filled.values()))
        self._views: dict[str, HostView] = dict(zip(filled, views, strict=True))
        if old is not None:
            for name in self.kept & old._views.keys():
                self._views[name][...] = old._views[name]

    def segments(self, read: PageRead) -> list[memoryview] | None:
        """Return the memory that a page fills, in payload order; None unless it fills it exactly,
        in pieces that are worth it. The reads must end before the arrays are handed over."""
        held, (tensors, stretches) = read.use.info.held, read.geometry
        rows = [len(s.names) * (prod(s.shape[:TOKEN_AXIS]) if held else 1) for s in stretches]
        if SEGMENT_BYTES * sum(rows) > tensors.nbytes:
            return None
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
        direct, encoded = list[PageRead](), list[PageRead]()
        for read in reads:
            (direct if is_direct(read, pages[read.use.page].meta) else encoded).append(read)
        with self._guard:
            if self._closed:
                return
            self._copying += 1
        try:
            for batch in batches(direct):
                spread(batch, pages, views)
                self.note(batch)
            for read in encoded:
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
        for name in self.kept & self._views.keys():
            self._views[name][:, :, self.plan.position :] = 0
        arrays = self._arrays
        # While a view lives, MLX copies an array that it would update in place.
        self._views, self._arrays = {}, {}
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
    tensors, tracks = read.geometry.tensors, plan.tracks
    wanted = {t.name: [s for s in read.spans if s.track == tracks[t.name]] for t in tensors}
    try:
        left = decode_into(views, page, tensors, wanted)
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
    batch: Sequence[PageRead], pages: Mapping[PageId, Page], views: Mapping[str, HostView]
) -> None:
    """Copy the payloads of a batch to their targets: one strided copy a tensor. Takes the size of
    the batch beside them if there are several."""
    first, payloads = batch[0], list[HostView]()
    for read in batch:
        payloads.append(payload_view(pages[read.use.page].payload))
    joined = np.concatenate(payloads) if len(batch) > 1 else payloads[0]
    table = joined.reshape(len(batch), -1)
    for stretch in first.geometry.stretches:
        size = stretch.nbytes * len(stretch.names)
        items = table[:, stretch.offset : stretch.offset + size].view(CARRIERS[stretch.dtype])
        # Pages, tensors, then the axes of a tensor.
        whole = items.reshape(len(batch), len(stretch.names), *stretch.shape)
        for track, lo, hi, to in first.spans:
            if track != stretch.track:
                continue
            if hi < 0:
                for name, source in zip(stretch.names, whole[0], strict=True):
                    views[name][...] = source
                continue
            # The pages come before the tokens: split so, a target's token axis is both.
            block = np.moveaxis(whole[:, :, :, :, lo:hi], 0, 1 + TOKEN_AXIS)
            stop = to + len(batch) * (hi - lo)
            for name, source in zip(stretch.names, block, strict=True):
                views[name][:, :, to:stop].reshape(source.shape)[...] = source


def fetch(
    source: ReadingTiers,
    read: PageRead,
    targets: HostTargets | None = None,
    *,
    prepared: bool = False,
) -> Page | None:
    """Read one page and return it, or None when its bytes went straight into `targets`.

    Blocks on the disk. The page goes to the hot tier where memory is free. Joins a prefetch that is
    reading it. One for something `prepared` evicts only pages that the disk has. Raises PageFailed.
    """
    page, held = read.use.page, read.use.info.held

    def reserve(meta: PageMeta) -> Reservation:
        if meta.held != held:
            # Sound, and no misfit: a fuller one, which covers other tokens, took its place.
            raise PageGone("the page was replaced since it was looked up")
        is_direct(read, meta)
        return source.reserve(meta.nbytes, page, prepared=prepared)

    def fill(reader: OpenPage, room: Reservation) -> Buffer | None:
        if not room and targets is not None and is_direct(read, reader.meta):
            segments = targets.segments(read)
            if segments is not None:
                reader.read_into(segments)
                targets.note([read])
                return None
            payload = np.empty(reader.meta.nbytes, dtype=np.uint8)
            reader.read_into([payload])
            return payload
        # It is to stay, or to be decoded, which is MLX's work: memory of MLX's own.
        array = allocate_payload(reader.meta.nbytes)
        reader.read_into([array])
        return on_device(array)

    try:
        # A prefetch's read began before ours would.
        coming = source.prefetcher.being_read(page)
        joined = source.held(page) if coming is None else result_along(coming)
        if joined is not None and joined.meta.held == held:
            return joined
        return read_page(source, page, reserve, fill)
    except PageError as error:
        raise PageFailed(page, error) from error
