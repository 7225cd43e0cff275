"""Encoded pages on a GPU: the parts of all pages are joined first, then decoded once a tensor."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, dtype_of, evaluate
from omlx_cache.pages.encoding import Tags, converted, page_arrays, tags_of
from omlx_cache.restore.plan import PageRead, Plan
from omlx_cache_storage.page import Page, TensorSpec


class _Piece(NamedTuple):
    """Tokens [lo, hi) of a page, whose tensor is encoded as `form`, go to index `to`."""

    to: int
    lo: int
    hi: int
    page: int
    form: str


class _Sources(NamedTuple):
    """The pages of a restore: views of their tensors, and how they are encoded."""

    arrays: Sequence[Mapping[str, Array]]
    tags: Sequence[Tags]


def decode_joined(plan: Plan, items: Sequence[tuple[PageRead, Page]]) -> dict[str, Array]:
    """Return every token target, evaluated one by one; what no page fills is zeros.

    Snapshots are left to the caller. Raises ForeignPage for what cannot be joined.
    """
    sources = _Sources(
        [page_arrays(page) for _read, page in items], [tags_of(page.meta) for _read, page in items]
    )
    pieces: dict[str, list[_Piece]] = {}
    for index, (read, _page) in enumerate(items):
        for copy in read.copies:
            if copy.hi >= 0 and plan.targets[copy.tensor].nbytes:
                tag = sources.tags[index].get(copy.tensor)
                form = "" if tag is None else tag.codec
                piece = _Piece(copy.to, copy.lo, copy.hi, index, form)
                pieces.setdefault(copy.tensor, []).append(piece)
    made: dict[str, Array] = {}
    for name, found in pieces.items():
        made[name] = _target(plan, plan.targets[name], _in_order(found), sources)
        evaluate([made[name]])
    return made


def _in_order(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Order pieces by target index and cut away what an earlier one fills already."""
    ordered: list[_Piece] = []
    filled = 0
    for piece in sorted(pieces):
        double = max(0, filled - piece.to)
        if piece.hi - piece.lo > double:
            ordered.append(piece._replace(to=piece.to + double, lo=piece.lo + double))
            filled = piece.to + piece.hi - piece.lo
    return ordered


def _runs(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Yield stretches of pieces that touch and are encoded alike."""
    number = 0
    stop = None
    marked = []
    for piece in pieces:
        if stop is not None and (piece.to != stop or piece.form != marked[-1][1].form):
            number += 1
        marked.append((number, piece))
        stop = piece.to + piece.hi - piece.lo
    for _number, run in groupby(marked, key=lambda item: item[0]):
        yield [piece for _n, piece in run]


def _target(plan: Plan, spec: TensorSpec, pieces: Sequence[_Piece], sources: _Sources) -> Array:
    parts: list[Array] = []
    filled = 0
    for run in _runs(pieces):
        parts.append(_gap(spec, run[0].to - filled))
        names = _names_behind(spec.name, sources.arrays[run[0].page])
        joined = {
            name: mx.concatenate(
                [sources.arrays[p.page][name][:, :, p.lo : p.hi] for p in run], axis=TOKEN_AXIS
            )
            for name in names
        }
        parts.append(converted(spec, joined, sources.tags[run[0].page], plan.codecs)[spec.name])
        filled = run[-1].to + run[-1].hi - run[-1].lo
    parts.append(_gap(spec, spec.shape[TOKEN_AXIS] - filled))
    return mx.concatenate(parts, axis=TOKEN_AXIS)


def _names_behind(name: str, arrays: Mapping[str, Array]) -> list[str]:
    """Return the page's tensors that a target is made of: itself, its parts, or its whole."""
    own = [n for n in arrays if n == name or n.startswith(f"{name}.")]
    whole = name.rpartition(".")[0]
    return own or [n for n in arrays if n == whole]


def _gap(spec: TensorSpec, tokens: int) -> Array:
    shape = list(spec.shape)
    shape[TOKEN_AXIS] = tokens
    return mx.zeros(shape, dtype=dtype_of(spec.dtype))
