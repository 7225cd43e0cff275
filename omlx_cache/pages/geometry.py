"""What pages cut from the same arrays have in common, planned once; and which pieces make each.

Layers of one group hold the same tokens and differ in little else, so their tensors fall into a
few runs: what is planned for a page grows with the runs, not with the layers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from omlx_cache.adapters.base import Ranges, TokenRange
from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, name_of
from omlx_cache.pages.layout import Leaf
from omlx_cache_storage.page import ITEM_BYTES, Tensors, TensorSpec, shared_tensors


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


class Piece(NamedTuple):
    """Indices [lo, hi) along the token axis of one source's arrays."""

    source: int
    lo: int
    hi: int


Pieces = tuple[Piece, ...]


class Run(NamedTuple):
    """Tensors that lie side by side in a page and are cut alike.

    `shape` is that of each array, without its tokens; `held` the tokens of each source.
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    held: tuple[Ranges, ...]


class PageCut(NamedTuple):
    """A page's tensors, and by run the pieces that they are joined from.

    None: the arrays as they are, whole.
    """

    tensors: Tensors
    pieces: tuple[Pieces, ...] | None

    @property
    def nbytes(self) -> int:
        return self.tensors.nbytes


class Geometry:
    """Plans pages of arrays that together hold a group's tokens, the last source's names and
    shapes deciding. Pure but for what it remembers; evaluates nothing.

    Mutable by the model's thread: `_tensors`, those of pages of each length.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.runs = _runs(sources)
        self._held = {run.held for run in self.runs}
        self._tensors: dict[int, Tensors] = {}

    def tokens(self, span: TokenRange) -> PageCut | None:
        """Return the cut for the tokens of `span`, None when a tensor does not hold them all."""
        pieces: dict[tuple[Ranges, ...], Pieces] = {}
        for held in self._held:
            found = _pieces(held, span)
            if found is None:
                return None
            pieces[held] = found
        if not pieces:
            return None
        count = len(span)
        tensors = self._tensors.get(count)
        if tensors is None:
            tensors = self._tensors[count] = _tensors(
                tuple([(r.names, r.dtype, with_tokens(r.shape, count)) for r in self.runs])
            )
        return PageCut(tensors, tuple(pieces[run.held] for run in self.runs))

    def whole(self) -> PageCut:
        """Return the cut for a snapshot: every array as it is."""
        tensors = _tensors(tuple([(r.names, r.dtype, r.shape) for r in self.runs]))
        return PageCut(tensors, None)

    def earliest(self, span: TokenRange) -> int:
        """Return the first token from which on all tensors hold `span`'s; span.stop if none."""
        together = [[tokens for ranges in held for tokens in ranges] for held in self._held]
        return max((_reach_back(ranges, span) for ranges in together), default=span.stop)


def with_tokens(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return an array's shape for another number of tokens."""
    return (*shape[:TOKEN_AXIS], count, *shape[TOKEN_AXIS + 1 :])


def _runs(sources: Sequence[Source]) -> list[Run]:
    """Return the runs in file order: wide items first (for alignment), then as the arrays come."""
    alike: dict[tuple[Any, tuple[int, ...], tuple[Ranges, ...]], list[str]] = {}
    for name, array in (sources[-1].arrays if sources else {}).items():
        held = tuple([source.ranges.get(name, ()) for source in sources])
        alike.setdefault((array.dtype, array.shape, held), []).append(name)
    # Buffers may differ in nothing but their slack.
    found: dict[tuple[Any, tuple[int, ...], tuple[Ranges, ...]], list[str]] = {}
    for (dtype, shape, held), names in alike.items():
        page_shape = with_tokens(shape, 0) if any(held) else shape
        found.setdefault((dtype, page_shape, held), []).extend(names)
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
    moved = True
    while moved and start > span.start:
        moved = False
        for candidate in ranges:
            if candidate.start < start <= candidate.stop:
                start = max(candidate.start, span.start)
                moved = True
    return start


def _pieces(held: Sequence[Ranges], span: TokenRange) -> Pieces | None:
    pieces: list[Piece] = []
    start = span.start
    while start < span.stop:
        piece = next(_pieces_at(held, start, span.stop), None)
        if piece is None:
            return None
        pieces.append(piece)
        start += piece.hi - piece.lo
    return tuple(pieces)


def _pieces_at(held: Sequence[Ranges], start: int, stop: int) -> Iterator[Piece]:
    for source, ranges in enumerate(held):
        base = 0
        for tokens in ranges:
            if tokens.start <= start < tokens.stop:
                lo = base + start - tokens.start
                yield Piece(source, lo, lo + min(stop, tokens.stop) - start)
            base += len(tokens)
