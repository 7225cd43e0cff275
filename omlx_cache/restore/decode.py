"""Encoded pages: one page's tensors in the form that a target wants, or those of many, joined.

On a GPU the parts of all pages are joined first, then decoded once a tensor. What cannot be joined
exactly raises ForeignPage: a miss.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, dtype_name, dtype_of, evaluate
from omlx_cache.codecs import Codec, codec_for, parse_identity
from omlx_cache.pages.tensors import Tag, Tags, page_arrays, tags_of
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, PageId, TensorSpec


class Piece(NamedTuple):
    """Tokens [lo, hi) of a page go to index `to` of a target."""

    to: int
    lo: int
    hi: int
    page: PageId


class _Sources(NamedTuple):
    """The pages of a restore: views of their tensors, and how they are encoded."""

    arrays: Mapping[PageId, Mapping[str, Array]]
    tags: Mapping[PageId, Tags]

    def form(self, name: str, page: PageId) -> str:
        """Return the codec of a page's tensor, "" for a plain one."""
        tag = self.tags[page].get(name)
        return "" if tag is None else tag.codec


def convert(
    page: Page, expected: Sequence[TensorSpec], codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return a page's tensors in the form that is expected, evaluated; raises ForeignPage.

    Parts are decoded for a dense target; a dense tensor is packed with `codecs` (by dense name)
    for a packed one. Packed tensors never take a dense detour.
    """
    arrays = page_arrays(page)
    tags = tags_of(page.meta)
    made: dict[str, Array] = {}
    for spec in expected:
        if spec.name not in made:
            made |= converted(spec, arrays, tags, codecs)
            evaluate(list(made.values()))
    for spec in expected:
        array = made[spec.name]
        if tuple(array.shape) != spec.shape or dtype_name(array) != spec.dtype:
            raise ForeignPage(
                f"{spec.name} is {dtype_name(array)} {tuple(array.shape)}, "
                f"{spec.dtype} {spec.shape} was expected"
            )
    return made


def converted(
    spec: TensorSpec, arrays: Mapping[str, Array], tags: Tags, codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return a lazy tensor in the form of `spec` (and what was made with it), any token count."""
    base = spec.name.rpartition(".")[0]
    if spec.name in arrays and (base not in codecs or _same(tags.get(base), codecs[base])):
        return {spec.name: arrays[spec.name]}
    if spec.name in tags:
        tag = tags[spec.name]
        prefix = f"{spec.name}."
        parts = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        try:
            dense = codec_for(parse_identity(tag.codec)).decode(parts, dtype_of(tag.dtype))
        except (ValueError, KeyError) as error:
            raise ForeignPage(f"{spec.name} cannot be decoded: {error}") from error
        return {spec.name: dense}
    if base in arrays and base in codecs:
        parts = codecs[base].encode(arrays[base])
        return {f"{base}.{part}": array for part, array in parts.items()}
    raise ForeignPage(f"the page has no {spec.name} and nothing to make it from")


def _same(tag: Tag | None, codec: Codec) -> bool:
    return tag is not None and tag.codec == str(codec.identity)


def decode_joined(
    targets: Mapping[str, TensorSpec],
    pieces: Mapping[str, Sequence[Piece]],
    pages: Mapping[PageId, Page],
    codecs: Mapping[str, Codec],
) -> dict[str, Array]:
    """Return the targets that have pieces, which are `in_order`, evaluated one by one; what no page
    fills is zeros.

    `codecs` are those of packed targets, by dense tensor name. Raises ForeignPage.
    """
    sources = _Sources(
        {name: page_arrays(page) for name, page in pages.items()},
        {name: tags_of(page.meta) for name, page in pages.items()},
    )
    made: dict[str, Array] = {}
    for name, found in pieces.items():
        made[name] = _target(targets[name], found, sources, codecs)
        evaluate([made[name]])
    return made


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


def _runs(pieces: Sequence[Piece], forms: Sequence[str]) -> Iterator[list[Piece]]:
    """Yield stretches of pieces that touch and are encoded alike."""
    run: list[Piece] = []
    before = ""
    for piece, form in zip(pieces, forms, strict=True):
        if run and (piece.to != run[-1].to + run[-1].hi - run[-1].lo or form != before):
            yield run
            run = []
        run.append(piece)
        before = form
    if run:
        yield run


def _target(
    spec: TensorSpec, pieces: Sequence[Piece], sources: _Sources, codecs: Mapping[str, Codec]
) -> Array:
    parts: list[Array] = []
    filled = 0
    forms = [sources.form(spec.name, piece.page) for piece in pieces]
    for run in _runs(pieces, forms):
        parts.append(_gap(spec, run[0].to - filled))
        names = _names_behind(spec.name, sources.arrays[run[0].page])
        joined = {
            name: mx.concatenate(
                [sources.arrays[p.page][name][:, :, p.lo : p.hi] for p in run], axis=TOKEN_AXIS
            )
            for name in names
        }
        parts.append(converted(spec, joined, sources.tags[run[0].page], codecs)[spec.name])
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
