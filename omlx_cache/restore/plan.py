"""What goes where in a restore: decided first, executed after by whichever executor suits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from omlx_cache.adapters.base import GroupSpec, Phase, Ranges, TokenRange
from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.codecs import Codec
from omlx_cache.pages.layout import Leaf
from omlx_cache.pages.tensors import (
    DENSE,
    file_order,
    packing_codecs,
    refuse_tensors_of_no_leaf,
    wanted_specs,
)
from omlx_cache.restore.lookup import PageUse, RestorePoint
from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.page import PageId, PageMeta, TensorSpec


class PageFailed(Exception):
    """A page could not be used; the restore must be planned again without it.

    `joins` says that the page itself is sound but does not fit the group that it should join.
    """

    def __init__(self, page: PageId, cause: PageError, *, joins: bool = False) -> None:
        super().__init__(str(cause))
        self.page = page
        self.cause = cause
        self.joins = joins


class Copy(NamedTuple):
    """Tokens [lo, hi) of a page's tensor go to index `to` of a target; hi is -1 for a snapshot."""

    tensor: str
    lo: int
    hi: int
    to: int


@dataclass(slots=True)
class PageRead:
    """One page, what is expected in it, and the copies out of it."""

    use: PageUse
    expected: tuple[TensorSpec, ...]
    copies: list[Copy] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """One leaf to rebuild: its tensors' full shapes, and the ring phase."""

    leaf: Leaf
    fields: Mapping[str, str]
    phase: Phase


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole restore. `targets` are the tensors to fill, capacity included; `codecs` are those
    of leaves that want their tensors packed, by dense tensor name; `encoded` says that some page
    known so far went through a codec."""

    position: int
    targets: Mapping[str, TensorSpec]
    reads: Sequence[PageRead]
    leaves: Sequence[LeafPlan]
    codecs: Mapping[str, Codec]
    encoded: bool

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.targets.values())


def make_plan(
    leaves: Sequence[Leaf],
    point: RestorePoint,
    models: Mapping[GroupSpec, PageMeta],
    phases: Mapping[str, Phase],
    capacity: int,
) -> Plan:
    """Return the plan to restore `point` into fresh leaves; pure.

    `models` has a page of each group, like which the others must be; `capacity` is the token count
    that growing buffers should hold without being copied. Raises PageFailed for a page that fits
    no leaf.
    """
    targets: dict[str, TensorSpec] = {}
    reads: list[PageRead] = []
    plans: list[LeafPlan] = []
    codecs: dict[str, Codec] = {}
    for group, uses in point.uses.items():
        model = models[group]
        wanted: dict[str, Ranges] = {}
        specs: dict[str, TensorSpec] = {}
        members = [leaf for leaf in leaves if leaf.group == group]
        try:
            refuse_tensors_of_no_leaf(model, members)
            if model.held and not model.tensors:
                raise ForeignPage(f"a page of {model.held} tokens has no tensors")
            for leaf in members:
                phase = phases.get(leaf.path, {})
                ranges = leaf.adapter.wanted(leaf.cache, point.position, phase)
                fields = wanted_specs(leaf, model)
                for spec in fields.values():
                    wanted[spec.name] = ranges
                    specs[spec.name] = spec
                    targets[spec.name] = _target(spec, leaf, ranges, capacity)
                codecs |= packing_codecs(leaf, model)
                plans.append(LeafPlan(leaf, {f: s.name for f, s in fields.items()}, phase))
        except PageError as error:
            raise PageFailed(model.id, error, joins=True) from error
        ordered = file_order(specs.values())
        reads += [_read(use, ordered, wanted) for use in uses]
    reads.sort(key=lambda read: read.use.info.position)
    encoded = any(meta.codec != DENSE for meta in models.values())
    return Plan(point.position, targets, reads, plans, codecs, encoded)


def is_direct(read: PageRead, meta: PageMeta) -> bool:
    """True when a page's tensors are what its targets want; False when a codec stands between.

    Raises PageFailed for a page of other leaves, or one without codec that has other tensors.
    """
    if meta.tensors == read.expected:
        return True
    names = {spec.name for spec in read.expected}
    ours = {spec for spec in meta.tensors if spec.name in names}
    differs = meta.codec == DENSE and bool(ours - set(read.expected))
    if differs or _paths(meta.tensors) != _paths(read.expected):
        error = ForeignPage("the page's tensors differ from those it should join")
        raise PageFailed(read.use.page, error, joins=True)
    return False


def _paths(specs: Iterable[TensorSpec]) -> set[tuple[str, ...]]:
    """Return the leaves that tensors belong to: the numbers that their names begin with."""
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
    shape = list(spec.shape)
    shape[TOKEN_AXIS] = tokens
    return TensorSpec(spec.name, spec.dtype, tuple(shape))


def _read(use: PageUse, specs: Sequence[TensorSpec], wanted: Mapping[str, Ranges]) -> PageRead:
    held = use.info.held
    if held == 0:
        read = PageRead(use, tuple(specs))
        read.copies += [Copy(spec.name, 0, -1, 0) for spec in specs]
        return read
    read = PageRead(use, tuple(_with_tokens(spec, held) for spec in specs))
    first = use.info.position - held
    for spec in specs:
        base = 0
        for tokens in wanted[spec.name]:
            part = _overlap(tokens, first, use.info.position)
            if len(part):
                to = base + part.start - tokens.start
                read.copies.append(Copy(spec.name, part.start - first, part.stop - first, to))
            base += len(tokens)
    return read


def _overlap(tokens: TokenRange, start: int, stop: int) -> TokenRange:
    lo = max(tokens.start, start)
    return TokenRange(lo, max(lo, min(tokens.stop, stop)))
