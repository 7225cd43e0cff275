"""Cutting pages out of live arrays, into payloads that own their bytes.

Layers of one group hold the same tokens and differ in little else, so their tensors fall into a few
runs. The plan of a page grows with the runs, not with the layers.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from math import prod
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeVar

import mlx.core as mx
import numpy as np

from omlx_cache.adapters.base import Phase, Ranges, TokenRange
from omlx_cache.arrays.mlxio import (
    CARRIERS,
    NAMES,
    TOKEN_AXIS,
    Array,
    HostView,
    allocate_payload,
    evaluate,
    host_views,
    on_host,
    payload_view,
    widest,
)
from omlx_cache.pages.layout import DENSE, Leaf, Tag, codec_text, page_arrays
from omlx_cache_storage.page import Tensors, TensorSpec, shared_tensors

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
    pieces: tuple[Pieces | None, ...]


class Cutter:
    """Plans pages of sources that together hold a group's tokens, and copies them into payloads
    that pin no source. The last source's names and shapes count.

    Planning evaluates nothing; a copy evaluates its tensors. Use it for one commit or capture and
    drop it before the live cache goes on: on the CPU `_views` are of the live buffers.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.runs: list[Run] = []
        self._views: dict[tuple[int, tuple[str, ...]], list[HostView]] = {}
        found: dict[tuple[int, str, tuple[int, ...], tuple[Ranges, ...]], list[str]] = {}
        for name, array in sources[-1].arrays.items():
            held = tuple([source.ranges.get(name, ()) for source in sources])
            # Buffers may differ in nothing but their slack.
            shape = with_tokens(array.shape, 0) if any(held) else array.shape
            key = array.itemsize, NAMES[array.dtype], shape, held
            found.setdefault(key, []).append(name)
        # In file order: wide items first (for alignment).
        for key in sorted(found, key=itemgetter(0), reverse=True):
            self.runs.append(Run(tuple(found[key]), *key[1:]))

    def tokens(self, span: TokenRange) -> PageCut | None:
        """Return the cut for `span`, None when a tensor does not hold it all."""
        known: dict[tuple[Ranges, ...], Pieces] = {}
        pieces: list[Pieces] = []
        shapes = []
        for names, dtype, shape, held in self.runs:
            found = known.get(held) or _pieces(held, span)
            if found is None:
                return None
            known[held] = found
            pieces.append(found)
            shapes.append((names, dtype, with_tokens(shape, len(span))))
        return PageCut(_tensors(tuple(shapes)), tuple(pieces)) if pieces else None

    def whole(self) -> PageCut:
        shapes = tuple([(run.names, run.dtype, run.shape) for run in self.runs])
        return PageCut(_tensors(shapes), (None,) * len(shapes))

    def earliest(self, span: TokenRange) -> int:
        """Return the first token from which on all tensors hold `span`'s; span.stop if none."""
        earliest = span.start if self.runs else span.stop
        for held in {run.held for run in self.runs}:
            start = span.stop
            latest_first = sorted(chain.from_iterable(held), key=attrgetter("stop"), reverse=True)
            for tokens in latest_first:
                if tokens.start < start <= tokens.stop:
                    start = tokens.start
            earliest = max(earliest, start)
        return earliest

    def payloads(self, cuts: Sequence[PageCut]) -> list[Array]:
        """Return the payloads of pages, evaluated; each owns its buffer."""
        payloads: list[Array] = []
        if on_host():
            for cut in cuts:
                payload = allocate_payload(cut.tensors.nbytes)
                self._fill(cut, payload_view(payload))
                payloads.append(payload)
            return payloads
        for batch in batched(cuts, _are_neighbours):
            made = self._split(batch) if len(batch) > 1 else [self._joined(batch[0])]
            # Evaluated behind our back while the next ones are asked for.
            mx.async_eval(made)
            payloads += made
        mx.eval(payloads)
        return payloads

    def views(self, cut: PageCut) -> dict[str, Array]:
        """Return a cut's lazy tensors by name, in a page's order; they may pin the sources."""
        parts = zip(self.runs, cut.pieces, strict=True)
        return {name: self._tensor(name, pieces) for run, pieces in parts for name in run.names}

    def copies(self, span: TokenRange, cut: PageCut) -> Source:
        """Return the tokens of `span`, which `cut` was planned for, as evaluated arrays that share
        a buffer of their own."""
        arrays = page_arrays(cut.tensors, self.payloads([cut])[0])
        evaluate(list(arrays.values()))
        return Source(arrays, dict.fromkeys(arrays, (span,)))

    def _fill(self, cut: PageCut, payload: HostView) -> None:
        first = end = 0
        for run, pieces in zip(self.runs, cut.pieces, strict=True):
            spec, count = cut.tensors[first], len(run.names)
            first, start, end = first + count, end, end + count * spec.nbytes
            target = payload[start:end].view(CARRIERS[spec.dtype]).reshape(count, *spec.shape)
            if pieces is None:
                for index, view in enumerate(self._views_of(0, run.names)):
                    target[index, ...] = view
            elif target.size:
                rows = target.reshape(-1, *spec.shape[1:])
                at = 0
                for source, lo, hi in pieces:
                    views = [view[:, :, lo:hi] for view in self._views_of(source, run.names)]
                    np.concatenate(views, out=rows[:, :, at : at + hi - lo])
                    at += hi - lo

    def _views_of(self, source: int, names: tuple[str, ...]) -> list[HostView]:
        key = (source, names)
        if key not in self._views:
            self._views[key] = host_views(map(self.sources[source].arrays.__getitem__, names))
        return self._views[key]

    def _joined(self, cut: PageCut) -> Array:
        runs = []
        for run, pieces in zip(self.runs, cut.pieces, strict=True):
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
        for run, pieces, last in zip(self.runs, cuts[0].pieces, cuts[-1].pieces, strict=True):
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
    if before.tensors is not cut.tensors:
        return False
    return (len(batch) + 1) * cut.tensors.nbytes <= DEVICE_BATCH_BYTES and all(
        first is not None
        and then is not None
        and len(first) == len(then) == 1
        and first[0].source == then[0].source
        and first[0].hi == then[0].lo
        for first, then in zip(before.pieces, cut.pieces, strict=True)
    )


def _as_bytes(array: Array) -> Array:
    return mx.contiguous(array).reshape(-1).view(mx.uint8)


def with_tokens(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (*shape[:TOKEN_AXIS], count, *shape[TOKEN_AXIS + 1 :])


@lru_cache(maxsize=256)
def _tensors(runs: tuple[tuple[tuple[str, ...], str, tuple[int, ...]], ...]) -> Tensors:
    specs: list[TensorSpec] = []
    for names, dtype, shape in runs:
        specs += map(TensorSpec, names, repeat(dtype), repeat(shape))
    return shared_tensors(tuple(specs))


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
