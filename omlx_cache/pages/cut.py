"""Cutting pages out of live arrays: which pieces of which buffers make a page's tensors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import mlx.core as mx

from omlx_cache.adapters.base import Ranges, TokenRange
from omlx_cache.arrays.blank import blank_arrays, blank_bytes
from omlx_cache.arrays.mlxio import (
    TOKEN_AXIS,
    Array,
    HostView,
    carrier,
    dtype_name,
    evaluate,
    host_view,
    on_host,
    writable_view,
)
from omlx_cache.pages.layout import Leaf
from omlx_cache.pages.tensors import file_order
from omlx_cache_storage.page import TensorSpec


@dataclass(frozen=True, slots=True)
class Source:
    """Arrays of some leaves, and which tokens each leaf's buffers hold, index 0 first.

    Tensor names are `<leaf path>.<field>`. A snapshot's arrays have no token axis (`ranges` ()).
    """

    arrays: Mapping[str, Array]
    ranges: Mapping[str, Ranges]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class Piece(NamedTuple):
    """Indices [lo, hi) along the token axis of one source's array."""

    source: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class TensorCut:
    """One tensor of a page and where it comes from; no pieces: the whole array of `source`."""

    spec: TensorSpec
    pieces: tuple[Piece, ...]
    source: int = 0


def read_source(leaves: Iterable[Leaf]) -> Source:
    """Return the live arrays of leaves; evaluates nothing; empty leaves are left out.

    Raises UnsupportedCache. The arrays are the cache's own: use and drop them before it goes on.
    """
    arrays: dict[str, Array] = {}
    ranges: dict[str, Ranges] = {}
    for leaf in leaves:
        held = leaf.adapter.held(leaf.cache)
        for field, array in leaf.arrays().items():
            name = f"{leaf.path}.{field}"
            arrays[name] = array
            ranges[name] = held
    return Source(arrays, ranges)


def cut_tokens(sources: Sequence[Source], span: TokenRange) -> list[TensorCut] | None:
    """Return the cuts for the tokens of `span`, or None when a tensor does not hold them all."""
    if not sources:
        return None
    cuts = []
    for name, array in sources[-1].arrays.items():
        pieces = _pieces([source.ranges.get(name, ()) for source in sources], span)
        if pieces is None:
            return None
        shape = list(array.shape)
        shape[TOKEN_AXIS] = len(span)
        cuts.append(TensorCut(TensorSpec(name, dtype_name(array), tuple(shape)), tuple(pieces)))
    return _in_file_order(cuts)


def cut_whole(source: Source) -> list[TensorCut]:
    """Return the cuts for a snapshot: every array as it is."""
    return _in_file_order(
        TensorCut(TensorSpec(name, dtype_name(array), tuple(array.shape)), ())
        for name, array in source.arrays.items()
    )


def earliest_held(sources: Sequence[Source], span: TokenRange) -> int:
    """Return the first token from which on all tensors hold `span`'s tokens; span.stop if none."""
    start = span.stop
    if not sources:
        return start
    needed = [
        [r for source in sources for r in source.ranges.get(name, ())]
        for name in sources[-1].arrays
    ]
    if not needed:
        return start
    return max(_reach_back(ranges, span) for ranges in needed)


def _reach_back(ranges: Sequence[TokenRange], span: TokenRange) -> int:
    start = span.stop
    moved = True
    while moved and start > span.start:
        moved = False
        for candidate in ranges:
            if candidate.start < start <= candidate.stop:
                start = max(candidate.start, span.start)
                moved = True
    return start


def _pieces(held: Sequence[Ranges], span: TokenRange) -> list[Piece] | None:
    pieces: list[Piece] = []
    start = span.start
    while start < span.stop:
        piece = next(_pieces_at(held, start, span.stop), None)
        if piece is None:
            return None
        pieces.append(piece)
        start += piece.hi - piece.lo
    return pieces


def _pieces_at(held: Sequence[Ranges], start: int, stop: int) -> Iterator[Piece]:
    for source, ranges in enumerate(held):
        base = 0
        for tokens in ranges:
            if tokens.start <= start < tokens.stop:
                lo = base + start - tokens.start
                yield Piece(source, lo, lo + min(stop, tokens.stop) - start)
            base += len(tokens)


def _in_file_order(cuts: Iterable[TensorCut]) -> list[TensorCut]:
    by_name = {cut.spec.name: cut for cut in cuts}
    return [by_name[spec.name] for spec in file_order(cut.spec for cut in by_name.values())]


_NOTHING = mx.zeros((0,), dtype=mx.uint8)


def _as_bytes(array: Array) -> Array:
    return mx.contiguous(array).reshape(-1).view(mx.uint8)


class Cutter:
    """Copies cuts into payloads that own their bytes and pin nothing of the sources.

    Evaluates the sources once. Use it for one commit or capture and drop it before the live cache
    goes on: on the CPU it holds views of the live buffers.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = list(sources)
        self._on_host = on_host()
        evaluate([array for source in sources for array in source.arrays.values()])
        self._views: dict[tuple[int, str], HostView] = {}

    def payload(self, cuts: Sequence[TensorCut]) -> Array:
        """Return the payload of one page, evaluated."""
        if self._on_host:
            return self._host_payload(cuts)
        payload = self._device_payload(cuts)
        mx.eval(payload)
        return payload

    def array(self, cut: TensorCut) -> Array:
        """Return one cut as an evaluated array that owns its buffer."""
        if not self._on_host:
            tensor = self._tensor(cut)
            array = mx.concatenate([tensor, tensor[:, :, :0]], axis=TOKEN_AXIS)
            mx.eval(array)
            return array
        array = blank_arrays({"": cut.spec})[""]
        if array.size:
            self._copy(cut, host_view(array).reshape(-1))
        return array

    def _host_payload(self, cuts: Sequence[TensorCut]) -> Array:
        payload = blank_bytes(sum(cut.spec.nbytes for cut in cuts))
        target = writable_view(payload)
        offset = 0
        for cut in cuts:
            end = offset + cut.spec.nbytes
            if end > offset:
                self._copy(cut, target[offset:end].view(carrier(cut.spec.dtype)))
            offset = end
        return payload

    def _copy(self, cut: TensorCut, flat: HostView) -> None:
        target = flat.reshape(cut.spec.shape)
        if not cut.pieces:
            target[...] = self._view(cut.source, cut.spec.name)
            return
        start = 0
        for piece in cut.pieces:
            stop = start + piece.hi - piece.lo
            view = self._view(piece.source, cut.spec.name)
            target[:, :, start:stop] = view[:, :, piece.lo : piece.hi]
            start = stop

    def _view(self, source: int, name: str) -> HostView:
        key = (source, name)
        if key not in self._views:
            self._views[key] = host_view(self._sources[source].arrays[name])
        return self._views[key]

    def _device_payload(self, cuts: Sequence[TensorCut]) -> Array:
        runs = []
        for (_dtype, shape), run in groupby(cuts, key=lambda c: (c.spec.dtype, c.spec.shape)):
            if 0 in shape:
                continue
            tensors = [self._tensor(cut) for cut in run]
            joined = mx.concatenate(tensors, axis=0) if len(tensors) > 1 else tensors[0]
            runs.append((joined, len(tensors) > 1))
        if len(runs) == 1 and runs[0][1]:
            return _as_bytes(runs[0][0])
        # A lone array may still be the cache's own: joining it with nothing copies it.
        return mx.concatenate([_as_bytes(run) for run, _new in runs] + [_NOTHING])

    def _tensor(self, cut: TensorCut) -> Array:
        name = cut.spec.name
        if not cut.pieces:
            array = self._sources[cut.source].arrays[name]
            return array.reshape(1) if array.ndim == 0 else array
        slices = [self._sources[p.source].arrays[name][:, :, p.lo : p.hi] for p in cut.pieces]
        return mx.concatenate(slices, axis=TOKEN_AXIS) if len(slices) > 1 else slices[0]
