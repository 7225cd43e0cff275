"""The bytes of a restore and their places, decided before anything is read."""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count, takewhile
from operator import attrgetter
from typing import NamedTuple

from omlx_cache.adapters.base import PAGED, STATE, GroupSpec, Phase, Ranges
from omlx_cache.adapters.kv import RotatingKVCacheAdapter
from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.policy import codec_named
from omlx_cache.pages.cut import with_tokens
from omlx_cache.pages.layout import (
    DENSE,
    Leaf,
    file_order,
    tags_of,
    wanted_specs,
)
from omlx_cache.restore.lookup import PageUse, RestorePoint
from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.page import (
    GEOMETRIES,
    PageId,
    PageMeta,
    Tensors,
    TensorSpec,
    shared_tensors,
)

BATCH_BYTES = 4 << 20
"""Small pages are copied together up to so much: few calls, and a core's cache mostly holds it."""
VOTERS = 5
"""Pages of a group that are compared to find the odd one; headers of cold ones are read."""

MetaOf = Callable[[PageId], PageMeta]
"""Returns a page's header, from memory if it is there; raises PageFailed."""
Form = frozenset[tuple[str, str, tuple[int, ...]]]
"""The form of a group's page, token counts left out: names, dtypes and shapes."""


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


class ReadGeometry(NamedTuple):
    """The tensors in a group's pages that hold as many tokens, and their places; pages share it.
    Tensors without bytes are in no stretch."""

    tensors: Tensors
    stretches: Sequence[Stretch]


class PageRead(NamedTuple):
    use: PageUse
    geometry: ReadGeometry
    spans: tuple[Span, ...]


class LeafPlan(NamedTuple):
    """One leaf to rebuild: the tensors of its pages by field, and the ring phase."""

    leaf: Leaf
    fields: Mapping[str, TensorSpec]
    phase: Phase


class Plan(NamedTuple):
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
    capacity: int,
    models: dict[GroupSpec, PageMeta],
    meta_of: MetaOf,
) -> Plan:
    """Return the plan to restore `point` into a layout's fresh caches, whose growing buffers
    hold `capacity` tokens without a copy. Reads a header for each group, by `meta_of`, and leaves
    it in `models`; one that is there tells what blocks are like. Raises PageFailed for a page that
    cannot be read, or fits no leaf."""
    targets: dict[str, TensorSpec] = {}
    tracks: dict[str, int] = {}
    reads: list[PageRead] = []
    plans: list[LeafPlan] = []
    codecs: dict[str, Codec] = {}
    encoded, numbers = False, count()
    for group, uses in point.uses.items():
        last = uses[-1]
        if group != PAGED:
            models[group] = meta_of(last.page)
        elif group not in models:
            # A page in memory, or the first that a failing disk would not give.
            models[group] = meta_of(next(filter(attrgetter("info.in_memory"), uses), uses[0]).page)
        model, members = models[group], groups[group]
        wanted: dict[Ranges, int] = {}
        specs: list[TensorSpec] = []
        ahead = last.info.position - point.position if group.kind == "window" else 0
        try:
            if model.held and not model.tensors:
                raise ForeignPage(f"a page of {model.held} tokens has no tensors")
            phases = _phases(model, members, ahead) if model.extra else {}
            for leaf, fields, packed in wanted_specs(members, model):
                phase = phases.get(leaf.path, {})
                ranges = leaf.adapter.wanted(leaf.cache, point.position, phase)
                track = wanted.setdefault(ranges, next(numbers))
                tokens, step = sum(map(len, ranges)), leaf.adapter.grows(leaf.cache)
                if step is not None:
                    room = max(capacity if group == PAGED else 0, tokens + 1)
                    tokens = -(-room // step) * step
                for spec in fields.values():
                    tracks[spec.name] = track
                    targets[spec.name] = spec if group == STATE else _with_tokens(spec, tokens)
                specs += fields.values()
                codecs |= packed
                plans.append(LeafPlan(leaf, fields, phase))
        except PageError as error:
            raise PageFailed(model.id, error, joins=True) from error
        encoded = encoded or model.codec != DENSE
        reads += _reads(uses, file_order(specs), tracks, wanted)
    reads.sort(key=attrgetter("use.info.position"))
    return Plan(point.position, targets, tracks, reads, plans, codecs, encoded)


def _phases(model: PageMeta, members: Sequence[Leaf], ahead: int) -> dict[str, Phase]:
    """Return the ring phases by leaf, as a page that ends `ahead` tokens behind the position says;
    raises ForeignPage."""
    try:
        phases: dict[str, Phase] = json.loads(model.extra)
        if not all(type(n) is int for phase in phases.values() for n in phase.values()):
            raise ForeignPage(f"the phases {model.extra[:80]!r} are not numbers")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ForeignPage(f"the phases {model.extra[:80]!r} cannot be read") from error
    if ahead != 1:
        return {} if ahead else phases
    # A ring has an index only after an update by the one token that is not restored.
    return {
        leaf.path: {"index": phases[leaf.path].get("index", 0) - 1}
        for leaf in members
        if leaf.path in phases and isinstance(leaf.adapter, RotatingKVCacheAdapter)
    }


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
        stop, held = use.info.position, use.info.held
        first = stop - held
        if held not in geometries:
            sized = [_with_tokens(spec, held) for spec in specs] if held else specs
            tensors = shared_tensors(tuple(sized))
            geometries[held] = ReadGeometry(tensors, stretches(tensors, tracks))
        spans: list[Span] = []
        for ranges, track in wanted.items():
            if not held:
                spans.append(Span(track, 0, -1, 0))
            base = 0
            for tokens in ranges:
                lo, hi = max(tokens.start, first), min(tokens.stop, stop)
                if lo < hi:
                    spans.append(Span(track, lo - first, hi - first, base + lo - tokens.start))
                base += len(tokens)
        yield PageRead(use, geometries[held], tuple(spans))


def stretches(tensors: Iterable[TensorSpec], tracks: Mapping[str, int]) -> list[Stretch]:
    """Return the stretches of a payload; without tracks all tensors that are alike are on one."""
    found: list[Stretch] = []
    offset = 0
    for spec in tensors:
        track, nbytes = tracks.get(spec.name, 0), spec.nbytes
        last = found[-1] if found else None
        if last and (last.track, last.dtype, last.shape) == (track, spec.dtype, spec.shape):
            found[-1] = last._replace(names=(*last.names, spec.name))
        elif nbytes:
            found.append(Stretch(track, (spec.name,), spec.dtype, spec.shape, offset, nbytes))
        offset += nbytes
    return found


def batches(
    reads: Iterable[PageRead], most: int = sys.maxsize, most_bytes: int = BATCH_BYTES
) -> Iterator[list[PageRead]]:
    """Yield the reads in order, in batches of `most` pages of one geometry and `most_bytes` that
    follow each other in all targets."""
    batch: list[PageRead] = []
    following: list[Span] = []
    for read in reads:
        held, geometry = read.use.info.held, read.geometry
        if batch and not (
            len(batch) < most
            and geometry is batch[-1].geometry
            and (len(batch) + 1) * geometry.tensors.nbytes <= most_bytes
            and len(following) == len(batch[-1].spans)
            and following == list(read.spans)
        ):
            yield batch
            batch = []
        batch.append(read)
        # Of the page behind this one, if all of this one is wanted.
        following = [
            Span(track, 0, held, to + held)
            for track, lo, hi, to in read.spans
            if (lo, hi) == (0, held)
        ]
    if batch:
        yield batch


def is_direct(read: PageRead, meta: PageMeta) -> bool:
    """True when a page's tensors are what its targets want, False when a codec stands between.
    Raises PageFailed for other tensors."""
    expected = read.geometry.tensors
    direct = meta.tensors == expected
    if not (direct or _is_encoding(shared_tensors(meta.tensors), expected, meta.codec == DENSE)):
        error = ForeignPage("the page's tensors differ from those it should join")
        raise PageFailed(read.use.page, error, joins=True)
    return direct


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


def misfits(
    failed: PageId, point: RestorePoint, leaves: Sequence[Leaf], meta_of: MetaOf
) -> set[PageId]:
    """Return the pages to forget after pages did not join: those unlike most of their group.
    Without a majority all compared ones: a commit writes right ones again. A page that only this
    build cannot decode is never to blame. Reads a few headers, raises nothing."""
    members = [leaf for leaf in leaves if leaf.group.name == failed.group]
    others = [u for u in point.all_uses if u.page != failed and u.page.group == failed.group]
    others.sort(key=lambda use: not use.info.in_memory)
    forms: dict[PageId, Form | None] = {}
    for page in [failed, *(use.page for use in others[: VOTERS - 1])]:
        with contextlib.suppress(PageFailed, PageError, ValueError, KeyError):
            meta = meta_of(page)
            for tag in tags_of(meta).values():
                codec_named(tag.codec)
            # None for a page that does not fit its leaves.
            forms[page] = None
            specs = [s for _leaf, fields, _ in wanted_specs(members, meta) for s in fields.values()]
            # A tensor's shape, without how many tokens it has.
            after = TOKEN_AXIS + bool(meta.held)
            forms[page] = frozenset(
                (spec.name, spec.dtype, spec.shape[:TOKEN_AXIS] + spec.shape[after:])
                for spec in specs
            )
    votes = Counter(form for form in forms.values() if form is not None)
    agreed = next((form for form, n in votes.items() if 2 * n > votes.total()), None)
    blamed = {page for page, form in forms.items() if form is None or form != agreed}
    # Or it looks like the others and still could not be joined.
    return blamed or {failed} & forms.keys()
