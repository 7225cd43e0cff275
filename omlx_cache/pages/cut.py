"""Cutting pages out of live arrays, into payloads that own their bytes.

Layers of one group hold the same tokens and differ in little else, so their tensors fall into a few
runs. The plan of a page grows with the runs, not with the layers.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx
import numpy as np

from omlx_cache.adapters.base import Phase, Ranges, TokenRange
from omlx_cache.arrays.mlxio import (
    TOKEN_AXIS,
    Array,
    HostView,
    blank_arrays,
    carrier,
    evaluate,
    host_views,
    name_of,
    on_host,
    widest,
    writable_view,
)
from omlx_cache.pages.layout import DENSE, Leaf, Tag, codec_text
from omlx_cache_storage.page import ITEM_BYTES, Tensors, TensorSpec, shared_tensors

T = TypeVar("T")
DEVICE_BATCH_BYTES = 256 << 20
"""How much of several pages a GPU joins at once: it is twice in memory for a moment."""

NOTHING = mx.array([], dtype=mx.uint8)
"""Not lazy: an array that one thread made lazily cannot be evaluated on another."""


class Source(NamedTuple):
    """Arrays of some leaves by name (`<leaf path>.<field>`), and which tokens each leaf's buffers
    hold, index 0 first; () for a snapshot, whose arrays have no token axis. `codec` and `extra` are
    what a page of them carries: how they are packed, and the phases of rings."""

    arrays: Mapping[str, Array]
    ranges: Mapping[str, Ranges]
    codec: str = DENSE
    extra: str = ""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


def read_source(leaves: Iterable[Leaf]) -> Source:
    """Return the live arrays of leaves; evaluates nothing; raises UnsupportedCache. The arrays are
    the cache's own: use and drop them before it goes on."""
    arrays: dict[str, Array] = {}
    ranges: dict[str, Ranges] = {}
    tags: dict[str, Tag] = {}
    phases: dict[str, Phase] = {}
    for path, cache, adapter, _group in leaves:
        held = adapter.held(cache)
        for field, array in adapter.arrays(cache).items():
            arrays[f"{path}.{field}"] = array
            ranges[f"{path}.{field}"] = held
        packing = adapter.packing(cache)
        if packing is not None:
            for side, form in packing.forms.items():
                codec = packing.codec(side, form.dim)
                tags[f"{path}.{side}"] = Tag(codec.identity, form.dtype, form.dim)
        phase = adapter.phase(cache)
        if phase:
            phases[path] = dict(phase)
    extra = json.dumps(phases, sort_keys=True, separators=(",", ":")) if phases else ""
    return Source(arrays, ranges, codec_text(tags), extra)


class Piece(NamedTuple):
    source: int
    lo: int
    hi: int


Pieces = tuple[Piece, ...]


class Run(NamedTuple):
    """Tensors that lie side by side in a page and are cut alike: `shape` is that of each, without
    its tokens; `held` the tokens of each source."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    held: tuple[Ranges, ...]


class PageCut(NamedTuple):
    """A page's tensors, and by run the pieces that they are joined from; None: the arrays as they
    are."""

    tensors: Tensors
    pieces: tuple[Pieces, ...] | None

    @property
    def nbytes(self) -> int:
        return self.tensors.nbytes


class Cutter:
    """Plans pages of sources that together hold a group's tokens, and copies them into payloads
    that pin no source. The last source's names and shapes count.

    Planning evaluates nothing; a copy evaluates its tensors. Use it for one commit or capture and
    drop it before the live cache goes on: on the CPU `_views` are of the live buffers.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.runs = _runs(sources)
        self._held = {run.held for run in self.runs}
        self.sources = list(sources)
        self._views: dict[tuple[int, tuple[str, ...]], list[HostView]] = {}

    def tokens(self, span: TokenRange) -> PageCut | None:
        """Return the cut for `span`, None when a tensor does not hold it all."""
        pieces: dict[tuple[Ranges, ...], Pieces] = {}
        for held in self._held:
            found = _pieces(held, span)
            if found is None:
                return None
            pieces[held] = found
        if not pieces:
            return None
        count = len(span)
        shapes = [(r.names, r.dtype, with_tokens(r.shape, count)) for r in self.runs]
        return PageCut(_tensors(tuple(shapes)), tuple(pieces[run.held] for run in self.runs))

    def whole(self) -> PageCut:
        return PageCut(_tensors(tuple([(r.names, r.dtype, r.shape) for r in self.runs])), None)

    def earliest(self, span: TokenRange) -> int:
        """Return the first token from which on all tensors hold `span`'s; span.stop if none."""
        together = [[tokens for ranges in held for tokens in ranges] for held in self._held]
        return max((_reach_back(ranges, span) for ranges in together), default=span.stop)

    def payloads(self, cuts: Sequence[PageCut]) -> list[Array]:
        """Return the payloads of pages, evaluated; each owns its buffer."""
        if on_host():
            specs = {str(i): TensorSpec("", "U8", (cut.nbytes,)) for i, cut in enumerate(cuts)}
            payloads = list(blank_arrays(specs).values())
            for cut, payload in zip(cuts, payloads, strict=True):
                self._fill(cut, writable_view(payload))
            return payloads
        payloads = []
        for batch in batched(cuts, _are_neighbours):
            made = self._split(batch) if len(batch) > 1 else [self._joined(batch[0])]
            # Evaluated behind our back while the next ones are asked for.
            mx.async_eval(made)
            payloads += made
        mx.eval(payloads)
        return payloads

    def views(self, cut: PageCut) -> dict[str, Array]:
        """Return a cut's lazy tensors by name, in a page's order; they may pin the sources."""
        return {n: self._tensor(n, pieces) for run, pieces in self._parts(cut) for n in run.names}

    def copies(self, span: TokenRange, cut: PageCut) -> Source:
        """Return the tokens of `span`, which `cut` was planned for, as evaluated arrays that own
        their buffers."""
        if on_host():
            arrays = blank_arrays({spec.name: spec for spec in cut.tensors})
            for run, pieces in self._parts(cut):
                for place, target in enumerate(host_views([arrays[name] for name in run.names])):
                    parts = [
                        self._views_of(piece.source, run.names)[place][:, :, piece.lo : piece.hi]
                        for piece in pieces or ()
                    ]
                    np.concatenate(parts, axis=TOKEN_AXIS, out=target)
        else:
            # One that is whole would be the cache's own: joining it with nothing copies it.
            arrays = {
                name: mx.concatenate([tensor, tensor[:, :, :0]], axis=TOKEN_AXIS)
                for name, tensor in self.views(cut).items()
            }
            evaluate(list(arrays.values()))
        return Source(arrays, dict.fromkeys(arrays, (span,)))

    def _parts(self, cut: PageCut) -> list[tuple[Run, Pieces | None]]:
        pieces = [None] * len(self.runs) if cut.pieces is None else cut.pieces
        return list(zip(self.runs, pieces, strict=True))

    def _fill(self, cut: PageCut, payload: HostView) -> None:
        first = end = 0
        for run, pieces in self._parts(cut):
            spec, count = cut.tensors[first], len(run.names)
            first, start, end = first + count, end, end + count * spec.nbytes
            if end > start:
                flat = payload[start:end].view(carrier(spec.dtype))
                self._join(run.names, pieces, flat.reshape(count, *spec.shape))

    def _join(self, names: tuple[str, ...], pieces: Pieces | None, target: HostView) -> None:
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
            arrays = self.sources[source].arrays
            self._views[key] = host_views([arrays[name] for name in names])
        return self._views[key]

    def _joined(self, cut: PageCut) -> Array:
        runs = []
        for run, pieces in self._parts(cut):
            tensors = [self._tensor(name, pieces) for name in run.names]
            if tensors[0].size:
                joined = mx.concatenate(tensors, axis=0) if len(tensors) > 1 else tensors[0]
                runs.append((joined, len(tensors) > 1))
        if len(runs) == 1 and runs[0][1]:
            return _as_bytes(runs[0][0])
        # A lone array may still be the cache's own: joining it with nothing copies it.
        return mx.concatenate([_as_bytes(run) for run, _new in runs] + [NOTHING])

    def _split(self, cuts: Sequence[PageCut]) -> list[Array]:
        """Return the payloads of pages that follow each other, not evaluated. One operation joins a
        run's tensors for all of them, and one more a page cuts its part."""
        count = len(cuts)
        parts: list[list[Array]] = [[] for _ in cuts]
        for (run, pieces), (_run, last) in zip(
            self._parts(cuts[0]), self._parts(cuts[-1]), strict=True
        ):
            if pieces is None or last is None or not prod(run.shape[:2]) * prod(run.shape[3:]):
                continue
            arrays = self.sources[pieces[0].source].arrays
            stretch = [arrays[name][:, :, pieces[0].lo : last[0].hi] for name in run.names]
            joined = mx.concatenate(stretch, axis=0)
            joined = joined.reshape(-1, joined.shape[TOKEN_AXIS], prod(joined.shape[3:]))
            carried, _ = widest(joined.shape[-1] * joined.itemsize, 0)
            for index, page in enumerate(mx.split(joined.view(carried), count, axis=1)):
                parts[index].append(mx.contiguous(page).reshape(-1).view(mx.uint8))
        # A concatenation with nothing owns its memory, whatever the part was.
        return [mx.concatenate([*part, NOTHING]) if len(part) != 1 else part[0] for part in parts]

    def _tensor(self, name: str, pieces: Pieces | None) -> Array:
        if pieces is None:
            array = self.sources[0].arrays[name]
            return array.reshape(1) if array.ndim == 0 else array
        slices = [self.sources[p.source].arrays[name][:, :, p.lo : p.hi] for p in pieces]
        return mx.concatenate(slices, axis=TOKEN_AXIS) if len(slices) > 1 else slices[0]


def batched(items: Iterable[T], joins: Callable[[Sequence[T], T], bool]) -> Iterator[list[T]]:
    """Yield the items in batches: each item in the one before it, if it `joins` that."""
    batch: list[T] = []
    for item in items:
        if batch and not joins(batch, item):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _are_neighbours(batch: Sequence[PageCut], cut: PageCut) -> bool:
    before = batch[-1]
    if before.pieces is None or cut.pieces is None or before.tensors is not cut.tensors:
        return False
    return (len(batch) + 1) * cut.nbytes <= DEVICE_BATCH_BYTES and all(
        len(first) == len(then) == 1
        and first[0].source == then[0].source
        and first[0].hi == then[0].lo
        for first, then in zip(before.pieces, cut.pieces, strict=True)
    )


def _as_bytes(array: Array) -> Array:
    return mx.contiguous(array).reshape(-1).view(mx.uint8)


def with_tokens(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (*shape[:TOKEN_AXIS], count, *shape[TOKEN_AXIS + 1 :])


def _runs(sources: Sequence[Source]) -> list[Run]:
    """Return the runs in file order: wide items first (for alignment)."""
    found: dict[tuple[Any, tuple[int, ...], tuple[Ranges, ...]], list[str]] = {}
    for name, array in (sources[-1].arrays if sources else {}).items():
        held = tuple([source.ranges.get(name, ()) for source in sources])
        # Buffers may differ in nothing but their slack.
        shape = with_tokens(array.shape, 0) if any(held) else array.shape
        found.setdefault((array.dtype, shape, held), []).append(name)
    runs = [
        Run(tuple(names), name_of(dtype), shape, held)
        for (dtype, shape, held), names in found.items()
    ]
    return sorted(runs, key=lambda run: -ITEM_BYTES[run.dtype])


@lru_cache(maxsize=256)
def _tensors(runs: tuple[tuple[tuple[str, ...], str, tuple[int, ...]], ...]) -> Tensors:
    return shared_tensors(
        tuple(TensorSpec(name, dtype, shape) for names, dtype, shape in runs for name in names)
    )


def _reach_back(ranges: Sequence[TokenRange], span: TokenRange) -> int:
    start = span.stop
    for tokens in sorted(ranges, key=lambda tokens: -tokens.stop):
        if tokens.start < start <= tokens.stop:
            start = tokens.start
    return max(start, span.start)


def _pieces(held: Sequence[Ranges], span: TokenRange) -> Pieces | None:
    pieces: list[Piece] = []
    start = span.start
    while start < span.stop:
        # One pass is enough but for rings, whose tokens are in another order.
        before = start
        for source, ranges in enumerate(held):
            base = 0
            for tokens in ranges:
                if start < span.stop and tokens.start <= start < tokens.stop:
                    lo = base + start - tokens.start
                    pieces.append(Piece(source, lo, lo + min(span.stop, tokens.stop) - start))
                    start += pieces[-1].hi - lo
                base += len(tokens)
        if start == before:
            return None
    return tuple(pieces)
