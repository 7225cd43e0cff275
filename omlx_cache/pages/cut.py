"""Cutting pages out of live arrays: payloads that own their bytes."""

from collections.abc import Iterator, Sequence
from math import prod

import mlx.core as mx
import numpy as np

from omlx_cache.adapters.base import TokenRange
from omlx_cache.arrays.blank import blank_arrays
from omlx_cache.arrays.mlxio import (
    TOKEN_AXIS,
    Array,
    HostView,
    carrier,
    evaluate,
    host_views,
    on_host,
    widest,
    writable_view,
)
from omlx_cache.pages.geometry import Geometry, PageCut, Pieces, Run, Source
from omlx_cache_storage.page import TensorSpec

DEVICE_BATCH_BYTES = 256 << 20
"""How much of several pages a GPU joins at once: it is twice in memory for a moment."""

_NOTHING = mx.array([], dtype=mx.uint8)
"""Not lazy: what is made on one thread cannot be evaluated on another."""


class Cutter:
    """Plans pages of some sources, and copies them into payloads that pin nothing of those.

    `geometry` plans and evaluates nothing; the first copy evaluates the sources. Use it for one
    commit or capture and drop it before the live cache goes on: on the CPU it holds views of the
    live buffers.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.geometry = Geometry(sources)
        self._sources = list(sources)
        self._evaluated = False
        self._views: dict[tuple[int, tuple[str, ...]], list[HostView]] = {}

    def payloads(self, cuts: Sequence[PageCut]) -> list[Array]:
        """Return the payloads of pages, evaluated; each owns its buffer."""
        self._evaluate()
        if on_host():
            specs = {str(i): TensorSpec("", "U8", (cut.nbytes,)) for i, cut in enumerate(cuts)}
            payloads = list(blank_arrays(specs).values())
            for cut, payload in zip(cuts, payloads, strict=True):
                self._fill(cut, writable_view(payload))
            return payloads
        payloads = []
        for batch in _neighbours(cuts):
            made = self._split(batch) if len(batch) > 1 else [self._joined(batch[0])]
            # Evaluated behind our back while the next ones are asked for.
            mx.async_eval(made)
            payloads += made
        mx.eval(payloads)
        return payloads

    def views(self, cut: PageCut) -> dict[str, Array]:
        """Return what `cut` was planned for as lazy tensors by name, in a page's order; they may
        pin the sources."""
        self._evaluate()
        return {n: self._tensor(n, pieces) for run, pieces in self._parts(cut) for n in run.names}

    def copies(self, span: TokenRange, cut: PageCut) -> Source:
        """Return the tokens of `span`, which `cut` was planned for, as evaluated arrays that own
        their buffers."""
        self._evaluate()
        if on_host():
            arrays = blank_arrays({spec.name: spec for spec in cut.tensors})
            for run, pieces in self._parts(cut):
                targets = host_views([arrays[name] for name in run.names])
                start = 0
                for source, lo, hi in pieces or ():
                    stop = start + hi - lo
                    for target, view in zip(
                        targets, self._views_of(source, run.names), strict=True
                    ):
                        target[:, :, start:stop] = view[:, :, lo:hi]
                    start = stop
        else:
            tensors = {
                n: self._tensor(n, pieces) for run, pieces in self._parts(cut) for n in run.names
            }
            # One that is whole would be the cache's own: joining it with nothing copies it.
            arrays = {
                name: mx.concatenate([tensor, tensor[:, :, :0]], axis=TOKEN_AXIS)
                for name, tensor in tensors.items()
            }
            evaluate(list(arrays.values()))
        return Source(arrays, dict.fromkeys(arrays, (span,)))

    def _evaluate(self) -> None:
        if not self._evaluated:
            evaluate([array for source in self._sources for array in source.arrays.values()])
            self._evaluated = True

    def _parts(self, cut: PageCut) -> list[tuple[Run, Pieces | None]]:
        runs = self.geometry.runs
        pieces = [None] * len(runs) if cut.pieces is None else cut.pieces
        return list(zip(runs, pieces, strict=True))

    def _fill(self, cut: PageCut, payload: HostView) -> None:
        first = end = 0
        for run, pieces in self._parts(cut):
            spec, count = cut.tensors[first], len(run.names)
            first, start, end = first + count, end, end + count * spec.nbytes
            if end > start:
                flat = payload[start:end].view(carrier(spec.dtype))
                self._join(run.names, pieces, flat.reshape(count, *spec.shape))

    def _join(self, names: tuple[str, ...], pieces: Pieces | None, target: HostView) -> None:
        """Copy one run's pieces to where they lie in a page, its tensors along the first axis."""
        if pieces is None:
            for index, view in enumerate(self._views_of(0, names)):
                target[index, ...] = view
            return
        target = target.reshape(-1, *target.shape[2:])
        start = 0
        for source, lo, hi in pieces:
            stop = start + hi - lo
            views = [view[:, :, lo:hi] for view in self._views_of(source, names)]
            np.concatenate(views, out=target[:, :, start:stop])
            start = stop

    def _views_of(self, source: int, names: tuple[str, ...]) -> list[HostView]:
        key = (source, names)
        if key not in self._views:
            arrays = self._sources[source].arrays
            self._views[key] = host_views([arrays[name] for name in names])
        return self._views[key]

    def _joined(self, cut: PageCut) -> Array:
        """Return a page's payload, made of MLX operations and not evaluated."""
        runs = []
        for run, pieces in self._parts(cut):
            tensors = [self._tensor(name, pieces) for name in run.names]
            if tensors[0].size:
                joined = mx.concatenate(tensors, axis=0) if len(tensors) > 1 else tensors[0]
                runs.append((joined, len(tensors) > 1))
        if len(runs) == 1 and runs[0][1]:
            return _as_bytes(runs[0][0])
        # A lone array may still be the cache's own: joining it with nothing copies it.
        return mx.concatenate([_as_bytes(run) for run, _new in runs] + [_NOTHING])

    def _split(self, cuts: Sequence[PageCut]) -> list[Array]:
        """Return the payloads of pages that lie behind each other, not evaluated: one operation
        joins a run's tensors for all of them, and one more a page cuts its part."""
        count = len(cuts)
        parts: list[list[Array]] = [[] for _ in cuts]
        for (run, pieces), (_run, last) in zip(
            self._parts(cuts[0]), self._parts(cuts[-1]), strict=True
        ):
            if pieces is None or last is None or not prod(run.shape[:2]) * prod(run.shape[3:]):
                continue
            arrays = self._sources[pieces[0].source].arrays
            stretch = [arrays[name][:, :, pieces[0].lo : last[0].hi] for name in run.names]
            joined = mx.concatenate(stretch, axis=0)
            joined = joined.reshape(-1, joined.shape[TOKEN_AXIS], prod(joined.shape[3:]))
            carried, _ = widest(joined.shape[-1] * joined.itemsize, 0)
            for index, page in enumerate(mx.split(joined.view(carried), count, axis=1)):
                parts[index].append(mx.contiguous(page).reshape(-1).view(mx.uint8))
        # What is joined with nothing owns its memory, whatever the part was.
        return [mx.concatenate([*part, _NOTHING]) if len(part) != 1 else part[0] for part in parts]

    def _tensor(self, name: str, pieces: Pieces | None) -> Array:
        if pieces is None:
            array = self._sources[0].arrays[name]
            return array.reshape(1) if array.ndim == 0 else array
        slices = [self._sources[p.source].arrays[name][:, :, p.lo : p.hi] for p in pieces]
        return mx.concatenate(slices, axis=TOKEN_AXIS) if len(slices) > 1 else slices[0]


def _neighbours(cuts: Sequence[PageCut]) -> Iterator[list[PageCut]]:
    """Yield the cuts in order, those that are alike and lie behind each other together, some
    `DEVICE_BATCH_BYTES` of them."""
    batch: list[PageCut] = []
    for cut in cuts:
        full = (len(batch) + 1) * cut.nbytes > DEVICE_BATCH_BYTES
        if batch and (full or not _follows(batch[-1], cut)):
            yield batch
            batch = []
        batch.append(cut)
    if batch:
        yield batch


def _follows(before: PageCut, cut: PageCut) -> bool:
    if before.pieces is None or cut.pieces is None or before.tensors is not cut.tensors:
        return False
    return all(
        len(first) == len(then) == 1
        and first[0].source == then[0].source
        and first[0].hi == then[0].lo
        for first, then in zip(before.pieces, cut.pieces, strict=True)
    )


def _as_bytes(array: Array) -> Array:
    return mx.contiguous(array).reshape(-1).view(mx.uint8)
