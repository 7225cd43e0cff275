"""The bytes of a restore and their places, decided before anything is read."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, groupby, takewhile
from math import prod
from typing import NamedTuple

from omlx_cache.adapters.base import PAGED, GroupSpec, Phase, Ranges
from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.codecs.codec import Codec
from omlx_cache.pages.cut import batched, with_tokens
from omlx_cache.pages.layout import (
    DENSE,
    Leaf,
    file_order,
    wanted_specs,
)
from omlx_cache.restore.lookup import PageUse, RestorePoint
from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.page import (
    GEOMETRIES,
    PageId,
    PageInfo,
    PageMeta,
    Tensors,
    TensorSpec,
    shared_tensors,
)

BATCH_BYTES = 4 << 20
"""Small pages are copied together up to so much: few calls, and a core's cache mostly holds it."""


class PageFailed(Exception):
    """A page could not be used: the restore is planned again without it. `joins`: it is sound but
    does not fit its group."""

    def __init__(self, page: PageId, cause: PageError, *, joins: bool = False) -> None:
        super().__init__(str(cause))
        self.page = page
        self.cause = cause
        self.joins = joins


class Span(NamedTuple):
    """Tokens [lo, hi) of a page go to index `to` of a track's tensors; hi is -1 for a whole
    snapshot."""

    track: int
    lo: int
    hi: int
    to: int


class Stretch(NamedTuple):
    """Tensors of a track, of one dtype and shape, side by side in a payload from `offset` on,
    `nbytes` each."""

    track: int
    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ReadGeometry:
    """The tensors in a group's pages that hold as many tokens, and their places; pages share it.
    Tensors without bytes are in no stretch. A page's bytes go to `pieces` stretches of memory."""

    tensors: Tensors
    stretches: tuple[Stretch, ...]
    pieces: int

    def of(self, track: int) -> list[Stretch]:
        return [stretch for stretch in self.stretches if stretch.track == track]


class PageRead(NamedTuple):
    use: PageUse
    geometry: ReadGeometry
    spans: tuple[Span, ...]


class LeafPlan(NamedTuple):
    """One leaf to rebuild: the targets of its fields, and the ring phase."""

    leaf: Leaf
    fields: Mapping[str, str]
    phase: Phase


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole restore. `targets` are the tensors to fill, capacity included; those of a group that
    want the same tokens are on one of the `tracks`. `codecs` pack tensors, by dense name;
    `encoded`: a page known so far went through a codec."""

    position: int
    targets: Mapping[str, TensorSpec]
    tracks: Mapping[str, int]
    reads: Sequence[PageRead]
    leaves: Sequence[LeafPlan]
    codecs: Mapping[str, Codec]
    encoded: bool

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.targets.values())


def make_plan(
    groups: Mapping[GroupSpec, Sequence[Leaf]],
    point: RestorePoint,
    models: Mapping[GroupSpec, PageMeta],
    phases: Mapping[str, Phase],
    capacity: int,
) -> Plan:
    """Return the plan to restore `point` into fresh leaves; pure. `models` has a page of each
    group; growing buffers hold `capacity` tokens without a copy. Raises PageFailed for a page that
    fits no leaf."""
    targets: dict[str, TensorSpec] = {}
    tracks: dict[str, int] = {}
    reads: list[PageRead] = []
    plans: list[LeafPlan] = []
    codecs: dict[str, Codec] = {}
    numbers = count()
    for group, uses in point.uses.items():
        model = models[group]
        wanted: dict[Ranges, int] = {}
        specs: list[TensorSpec] = []
        try:
            if model.held and not model.tensors:
                raise ForeignPage(f"a page of {model.held} tokens has no tensors")
            for leaf, fields, packed in wanted_specs(groups[group], model):
                phase = phases.get(leaf.path, {})
                ranges = leaf.adapter.wanted(leaf.cache, point.position, phase)
                track = wanted.setdefault(ranges, next(numbers))
                for spec in fields.values():
                    tracks[spec.name] = track
                    targets[spec.name] = _target(spec, leaf, ranges, capacity)
                specs += fields.values()
                codecs |= packed
                plans.append(LeafPlan(leaf, {f: s.name for f, s in fields.items()}, phase))
        except PageError as error:
            raise PageFailed(model.id, error, joins=True) from error
        reads += _reads(uses, file_order(specs), tracks, wanted)
    reads.sort(key=lambda read: read.use.info.position)
    encoded = any(meta.codec != DENSE for meta in models.values())
    return Plan(point.position, targets, tracks, reads, plans, codecs, encoded)


def batches(
    reads: Iterable[PageRead], most: int = sys.maxsize, most_bytes: int = BATCH_BYTES
) -> Iterator[list[PageRead]]:
    """Yield the reads in order, in batches of `most` pages of one geometry and `most_bytes` that
    follow each other in all targets."""

    def joins(batch: Sequence[PageRead], read: PageRead) -> bool:
        before, held = batch[-1], read.use.info.held
        return (
            len(batch) < most
            and read.geometry is before.geometry
            and (len(batch) + 1) * read.geometry.tensors.nbytes <= most_bytes
            and len(read.spans) == len(before.spans)
            and all(
                (last.lo, last.hi) == (0, held) and span == (last.track, 0, held, last.to + held)
                for last, span in zip(before.spans, read.spans, strict=True)
            )
        )

    return batched(reads, joins)


class Targets:
    """The buffers of a plan, and the pages that are in them (`filled`). `kept` are the growing
    buffers that this plan wants like the one `before` it: a window has another order at another
    position, and a state is valid at one."""

    def __init__(self, plan: Plan, before: "Targets | None") -> None:
        self.plan = plan
        self.kept: set[str] = set()
        self.filled: dict[PageId, PageInfo] = {}
        if before is not None:
            growing = {read.geometry for read in plan.reads if read.use.page.group == PAGED.name}
            names = {spec.name for geometry in growing for spec in geometry.tensors}
            self.kept = {n for n in names if before.plan.targets.get(n) == plan.targets[n]}
            new = {plan.tracks[name] for name in plan.targets.keys() - self.kept}
            there = dict(before.filled)
            old = [read for read in plan.reads if read.use.page in there]
            self.note(r for r in old if not any(span.track in new for span in r.spans))

    def note(self, reads: Iterable[PageRead]) -> None:
        self.filled |= {read.use.page: read.use.info for read in reads}

    def gaps(self) -> dict[str, list[slice]]:
        """Return, by kept buffer, where the plan puts no token: room to grow must not show tokens
        of a longer plan."""
        spans: dict[int, list[Span]] = {}
        for read in self.plan.reads:
            for span in read.spans:
                spans.setdefault(span.track, []).append(span)
        names = (name for name in self.kept if self.plan.targets[name].nbytes)
        return {name: _gaps(spans.get(self.plan.tracks[name], [])) for name in names}


def _gaps(spans: Sequence[Span]) -> list[slice]:
    between = []
    at = 0
    for span in sorted(spans, key=lambda span: span.to):
        if span.hi < 0:
            return []
        if at < span.to:
            between.append(slice(at, span.to))
        at = max(at, span.to + span.hi - span.lo)
    return [*between, slice(at, None)]


def is_direct(read: PageRead, meta: PageMeta) -> bool:
    """True when a page's tensors are what its targets want, False when a codec stands between.
    Raises PageFailed for other tensors."""
    expected = read.geometry.tensors
    if meta.tensors == expected:
        return True
    if not _is_encoding(shared_tensors(meta.tensors), expected, meta.codec == DENSE):
        error = ForeignPage("the page's tensors differ from those it should join")
        raise PageFailed(read.use.page, error, joins=True)
    return False


@lru_cache(GEOMETRIES)
def _is_encoding(stored: Tensors, expected: Tensors, plain: bool) -> bool:
    """True when a page's tensors belong to the same leaves, in another form if not `plain`. Cached,
    as the pages of a group share their tensors."""
    names = {spec.name for spec in expected}
    ours = {spec for spec in stored if spec.name in names}
    differs = plain and bool(ours - set(expected))
    return not differs and _paths(stored) == _paths(expected)


def _paths(specs: Iterable[TensorSpec]) -> set[tuple[str, ...]]:
    return {tuple(takewhile(str.isdecimal, spec.name.split("."))) for spec in specs}


def _target(spec: TensorSpec, leaf: Leaf, ranges: Ranges, capacity: int) -> TensorSpec:
    if leaf.group.kind == "state":
        return spec
    tokens = sum(len(r) for r in ranges)
    step = leaf.adapter.grows(leaf.cache)
    if step is not None:
        room = max(capacity if leaf.group.kind == "paged" else tokens + 1, tokens + 1)
        tokens = -(-room // step) * step
    return _with_tokens(spec, tokens)


def _with_tokens(spec: TensorSpec, tokens: int) -> TensorSpec:
    # Pages that hold as many tokens share their specs, and the values computed from them.
    same = spec.shape[TOKEN_AXIS] == tokens
    return spec if same else replace(spec, shape=with_tokens(spec.shape, tokens))


def _reads(
    uses: Iterable[PageUse],
    specs: Sequence[TensorSpec],
    tracks: Mapping[str, int],
    wanted: Mapping[Ranges, int],
) -> Iterator[PageRead]:
    geometries: dict[int, ReadGeometry] = {}
    for use in uses:
        held = use.info.held
        if held not in geometries:
            tensors = shared_tensors(tuple(_with_tokens(s, held) if held else s for s in specs))
            found = tuple(stretches(tensors, tracks))
            pieces = sum(len(s.names) * (prod(s.shape[:TOKEN_AXIS]) if held else 1) for s in found)
            geometries[held] = ReadGeometry(tensors, found, pieces)
        yield PageRead(use, geometries[held], tuple(_spans(use, wanted)))


def stretches(tensors: Iterable[TensorSpec], tracks: Mapping[str, int]) -> Iterator[Stretch]:
    """Yield the stretches of a payload; without tracks all tensors that are alike are on one."""
    offset = 0
    for (track, dtype, shape), same in groupby(
        tensors, lambda spec: (tracks.get(spec.name, 0), spec.dtype, spec.shape)
    ):
        alike = list(same)
        nbytes = alike[0].nbytes
        if nbytes:
            yield Stretch(track, tuple(s.name for s in alike), dtype, shape, offset, nbytes)
        offset += nbytes * len(alike)


def _spans(use: PageUse, wanted: Mapping[Ranges, int]) -> Iterator[Span]:
    stop, held = use.info.position, use.info.held
    first = stop - held
    for ranges, track in wanted.items():
        if not held:
            yield Span(track, 0, -1, 0)
        base = 0
        for tokens in ranges:
            lo, hi = max(tokens.start, first), min(tokens.stop, stop)
            if lo < hi:
                yield Span(track, lo - first, hi - first, base + lo - tokens.start)
            base += len(tokens)
