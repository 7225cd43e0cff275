"""The stored tensors of many pages, joined along their tokens by few operations.

Tensors that lie side by side in their pages, alike but for the layer, are joined together: what is
asked of MLX grows with pages and with tensors, not with their product.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, dtype_of
from omlx_cache_storage.page import Page, PageId, TensorSpec


class Piece(NamedTuple):
    """Tokens [lo, hi) of a page go to index `to` of a target."""

    to: int
    lo: int
    hi: int
    page: PageId


def in_order(pieces: Iterable[Piece]) -> list[Piece]:
    """Order pieces by target index and cut away what an earlier one fills already."""
    ordered: list[Piece] = []
    filled = 0
    for piece in sorted(pieces):
        double = max(0, filled - piece.to)
        if piece.hi - piece.lo > double:
            ordered.append(piece._replace(to=piece.to + double, lo=piece.lo + double))
            filled = piece.to + piece.hi - piece.lo
    return ordered


class _Block(NamedTuple):
    """Tensors of one dtype and shape that lie side by side in a page, from `offset` on."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


_Form = tuple[str, tuple[tuple[tuple[str, ...], str, tuple[int, ...]], ...]]
"""What pages that are joined have in common: how they are encoded, and their blocks."""


class Columns:
    """Pages that are encoded alike, as `meta` says, and whose tokens follow each other from `start`
    to `stop`."""

    def __init__(self, pieces: Sequence[Piece], pages: Sequence[Page], blocks: "_Blocks") -> None:
        self.start = pieces[0].to
        self.stop = pieces[-1].to + pieces[-1].hi - pieces[-1].lo
        self.meta = pages[0].meta
        self._sources = [
            (piece, page.payload, blocks.of(page))
            for piece, page in zip(pieces, pages, strict=True)
        ]
        self.names = [name for block in self._sources[0][2] for name in block.names]

    def join(self, names: Collection[str], before: int = 0, after: int = 0) -> dict[str, Array]:
        """Return lazy tensors of all tokens by stored name, `before` and `after` tokens of zeros
        around them. They may share memory with each other, and with a page if there is but one."""
        made: dict[str, Array] = {}
        for index, block in enumerate(self._sources[0][2]):
            wanted = [place for place, name in enumerate(block.names) if name in names]
            for first, stop in _ranges(wanted):
                joined = self._join(index, first, stop, before, after)
                rows = block.shape[0]
                for place in range(first, stop):
                    at = (place - first) * rows
                    made[block.names[place]] = joined[at : at + rows]
        return made

    def _join(self, index: int, first: int, stop: int, before: int, after: int) -> Array:
        """Join the tensors [first, stop) of a block, which become the first axis."""
        head = self._sources[0][2][index]
        rows = (stop - first) * prod(head.shape[:TOKEN_AXIS])
        width = head.nbytes // prod(head.shape[: TOKEN_AXIS + 1])
        parts = [mx.zeros((rows, before * width), dtype=mx.uint8)] if before else []
        for piece, payload, blocks in self._sources:
            offset, nbytes = blocks[index].offset, blocks[index].nbytes
            raw = payload[offset + first * nbytes : offset + stop * nbytes].reshape(rows, -1)
            if (piece.lo, piece.hi) != (0, blocks[index].shape[TOKEN_AXIS]):
                raw = raw[:, piece.lo * width : piece.hi * width]
            parts.append(raw)
        if after:
            parts.append(mx.zeros((rows, after * width), dtype=mx.uint8))
        tokens = before + self.stop - self.start + after
        shape = _with_tokens(head.shape, tokens)
        joined: Array = mx.concatenate(parts, axis=1).view(dtype_of(head.dtype))
        return joined.reshape((stop - first) * shape[0], *shape[1:])


class _Blocks:
    """The blocks of pages, worked out once for each geometry."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Block, ...]] = {}

    def of(self, page: Page) -> tuple[_Block, ...]:
        # The page keeps its tensors alive, so that no other object gets their number.
        key = id(page.meta.tensors)
        if key not in self._known:
            self._known[key] = tuple(_blocks(page.meta.tensors))
        return self._known[key]

    def form(self, page: Page) -> _Form:
        blocks = self.of(page)
        alike = tuple((b.names, b.dtype, _with_tokens(b.shape, 0)) for b in blocks)
        return page.meta.codec, alike


def columns_of(pieces: Sequence[Piece], pages: Mapping[PageId, Page]) -> list[Columns]:
    """Return the stretches of pieces, which are `in_order`, that touch and are encoded alike."""
    blocks = _Blocks()
    found: list[Columns] = []
    run: list[Piece] = []
    before: _Form | None = None
    for piece in pieces:
        form = blocks.form(pages[piece.page])
        if run and (form != before or piece.to != run[-1].to + run[-1].hi - run[-1].lo):
            found.append(Columns(run, [pages[p.page] for p in run], blocks))
            run = []
        run.append(piece)
        before = form
    if run:
        found.append(Columns(run, [pages[p.page] for p in run], blocks))
    return found


def _blocks(specs: Iterable[TensorSpec]) -> Iterator[_Block]:
    offset = 0
    for (dtype, shape), same in groupby(specs, lambda spec: (spec.dtype, spec.shape)):
        alike = list(same)
        nbytes = alike[0].nbytes
        if nbytes:
            yield _Block(tuple(s.name for s in alike), dtype, shape, offset, nbytes)
        offset += nbytes * len(alike)


def _ranges(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield [first, stop) of neighbouring places."""
    for _, run in groupby(enumerate(places), lambda item: item[1] - item[0]):
        members = [place for _, place in run]
        yield members[0], members[-1] + 1


def _with_tokens(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (*shape[:TOKEN_AXIS], count, *shape[TOKEN_AXIS + 1 :])


def batches_of(specs: Sequence[TensorSpec], most: int) -> Iterator[list[TensorSpec]]:
    """Yield tensors of up to `most` bytes together, a larger one by itself."""
    batch: list[TensorSpec] = []
    nbytes = 0
    for spec in specs:
        if batch and nbytes + spec.nbytes > most:
            yield batch
            batch, nbytes = [], 0
        batch.append(spec)
        nbytes += spec.nbytes
    if batch:
        yield batch
