"""Encoded pages: a page's tensors in the form that a target wants; ForeignPage, a miss, where that
is not exact.

Some tensors NumPy decodes faster than MLX on a CPU, straight into the buffers. On a GPU the stored
tensors of many pages are joined, neighbours together, and decoded once a tensor: operations grow
with pages and with tensors, not with their product.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from math import prod
from typing import NamedTuple

import mlx.core as mx

from omlx_cache.arrays.mlxio import (
    CARRIERS,
    DTYPES,
    NAMES,
    TOKEN_AXIS,
    Array,
    HostView,
    evaluate,
    payload_view,
)
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.policy import codec_named
from omlx_cache.codecs.turbo import HostDecoder, TurboCodec, host_decodes
from omlx_cache.pages.cut import batched, with_tokens
from omlx_cache.pages.layout import Tag, Tags, page_arrays, part_specs, tags_of
from omlx_cache.restore.plan import Span, Stretch, stretches
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import (
    GEOMETRIES,
    Page,
    PageId,
    PageMeta,
    TensorSpec,
)

HOST_BATCH_BYTES = 512 << 10
"""Bytes that are decoded on the CPU before MLX evaluates: they stay in a core's cache."""
DEVICE_BATCH_BYTES = 1 << 30
"""Dense bytes that are joined together: each time takes operations of MLX by page."""
DEVICE_STEP_BYTES = 256 << 20
"""Bytes that are decoded before MLX evaluates."""
_HALVES = ("BF16", "F16")


def convert(
    page: Page, expected: Sequence[TensorSpec], codecs: Mapping[str, Codec]
) -> Iterator[dict[str, Array]]:
    """Yield a page's tensors by name in the expected form, evaluated, some `HOST_BATCH_BYTES` at a
    time; raises ForeignPage. A dense tensor is packed with `codecs` (by dense name) for a packed
    target; packed ones never take a dense detour."""
    arrays = page_arrays(page.meta.tensors, page.payload)
    tags = tags_of(page.meta)
    specs = {spec.name: spec for spec in expected}
    seen: set[str] = set()
    for batch in batches_of(expected, HOST_BATCH_BYTES):
        made: dict[str, Array] = {}
        for spec in batch:
            if spec.name not in seen:
                fresh = converted(spec, arrays, tags, codecs)
                made |= {name: array for name, array in fresh.items() if name in specs}
                seen |= fresh.keys()
        for name, array in made.items():
            wanted, found = specs[name], (NAMES[array.dtype], tuple(array.shape))
            if found != (wanted.dtype, wanted.shape):
                expects = f"{wanted.dtype} {wanted.shape} was expected"
                raise ForeignPage(f"{name} is {found[0]} {found[1]}, {expects}")
        evaluate(list(made.values()))
        yield made


def converted(
    spec: TensorSpec, arrays: Mapping[str, Array], tags: Tags, codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return a lazy tensor in the form of `spec` (and what was made with it), any token count."""
    base = spec.name.rpartition(".")[0]
    if spec.name in arrays and (
        base not in codecs or (base in tags and tags[base].codec == codecs[base].identity)
    ):
        return {spec.name: arrays[spec.name]}
    if spec.name in tags:
        tag = tags[spec.name]
        prefix = f"{spec.name}."
        parts = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        try:
            dense = codec_named(tag.codec).decode(parts, DTYPES[tag.dtype])
        except (ValueError, KeyError) as error:
            raise ForeignPage(f"{spec.name} cannot be decoded: {error}") from error
        return {spec.name: dense}
    if base in arrays and base in codecs:
        parts = codecs[base].encode(arrays[base])
        return {f"{base}.{part}": array for part, array in parts.items()}
    raise ForeignPage(f"the page has no {spec.name} and nothing to make it from")


def batches_of(specs: Sequence[TensorSpec], most: int) -> Iterator[list[TensorSpec]]:
    return batched(specs, lambda batch, spec: sum(s.nbytes for s in [*batch, spec]) <= most)


def decode_into(
    views: Mapping[str, HostView],
    page: Page,
    expected: Sequence[TensorSpec],
    places: Mapping[str, Sequence[Span]],
) -> list[TensorSpec]:
    """Decode the tensors that NumPy decodes into their places, and return the others. Evaluates
    nothing."""
    tags, stored = tags_of(page.meta), page.meta.tensors
    payload = payload_view(page.payload)
    stops = dict(zip(stored, accumulate(spec.nbytes for spec in stored), strict=True))

    def view(spec: TensorSpec) -> HostView:
        stop = stops[spec]
        flat: HostView = payload[stop - spec.nbytes : stop].view(CARRIERS[spec.dtype])
        return flat.reshape(-1, *spec.shape[TOKEN_AXIS:])

    left: list[TensorSpec] = []
    decoders: dict[tuple[int, str], HostDecoder] = {}
    for spec in expected:
        codec = _codec_of(spec, tags.get(spec.name))
        parts = () if codec is None else part_specs(spec, codec)
        if codec is None or not stops.keys() >= set(parts):
            left.append(spec)
            continue
        key = codec.dim, spec.dtype
        if key not in decoders:
            decoders[key] = HostDecoder(codec.dim, bfloat=spec.dtype == "BF16")
        norms, words = map(view, parts)
        norms = norms.view("<f2")
        target = views[spec.name]
        rows = target.reshape(-1, *target.shape[TOKEN_AXIS:])
        for place in places[spec.name]:
            tokens = slice(place.lo, place.hi)
            out = rows[:, place.to : place.to + place.hi - place.lo]
            decoders[key].decode(codec.seed, norms[:, tokens], words[:, tokens], out)
    return left


def _codec_of(spec: TensorSpec, tag: Tag | None) -> TurboCodec | None:
    if tag is None or spec.dtype not in _HALVES or tag.dtype != spec.dtype or not spec.nbytes:
        return None
    with contextlib.suppress(ValueError):
        codec = codec_named(tag.codec)
        if isinstance(codec, TurboCodec) and host_decodes(codec.dim, codec.bits):
            return None if codec.refusal(spec.shape[-1], DTYPES[spec.dtype]) else codec
    return None


class DecodedPiece(NamedTuple):
    """Tokens [lo, hi) of a page go to index `to` of a target."""

    to: int
    lo: int
    hi: int
    page: PageId


def in_order(pieces: Iterable[DecodedPiece]) -> list[DecodedPiece]:
    """Order pieces by target index; parts that an earlier one fills are cut away."""
    ordered: list[DecodedPiece] = []
    filled = 0
    for piece in sorted(pieces):
        double = max(0, filled - piece.to)
        if piece.hi - piece.lo > double:
            ordered.append(piece._replace(to=piece.to + double, lo=piece.lo + double))
            filled = piece.to + piece.hi - piece.lo
    return ordered


_Form = tuple[str, tuple[tuple[tuple[str, ...], str, tuple[int, ...]], ...]]


class Columns:
    """Pages that are encoded alike, as `meta` says, whose tokens follow each other from `start` to
    `stop`."""

    def __init__(self, pieces: Sequence[DecodedPiece], pages: Mapping[PageId, Page]) -> None:
        self.start = pieces[0].to
        self.stop = pieces[-1].to + pieces[-1].hi - pieces[-1].lo
        self.meta = pages[pieces[0].page].meta
        self._sources = [
            (piece, pages[piece.page].payload, _blocks(pages[piece.page].meta.tensors))
            for piece in pieces
        ]
        self.names = [name for block in self._sources[0][2] for name in block.names]

    def join(self, names: Collection[str], before: int = 0, after: int = 0) -> dict[str, Array]:
        """Return lazy tensors of all tokens by stored name, with `before` and `after` tokens of
        zeros around them. They may share memory with each other, and with a page if there is but
        one."""
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
        shape = with_tokens(head.shape, before + self.stop - self.start + after)
        joined: Array = mx.concatenate(parts, axis=1).view(DTYPES[head.dtype])
        return joined.reshape((stop - first) * shape[0], *shape[1:])


def columns_of(pieces: Sequence[DecodedPiece], pages: Mapping[PageId, Page]) -> list[Columns]:
    def joins(run: Sequence[DecodedPiece], piece: DecodedPiece) -> bool:
        last = run[-1]
        touches = piece.to == last.to + last.hi - last.lo
        return touches and _form(pages[last.page].meta) == _form(pages[piece.page].meta)

    return [Columns(run, pages) for run in batched(pieces, joins)]


@lru_cache(GEOMETRIES)
def _blocks(tensors: tuple[TensorSpec, ...]) -> tuple[Stretch, ...]:
    return tuple(stretches(tensors, {}))


def _form(meta: PageMeta) -> _Form:
    alike = tuple((b.names, b.dtype, with_tokens(b.shape, 0)) for b in _blocks(meta.tensors))
    return meta.codec, alike


def _ranges(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    for _, run in groupby(enumerate(places), lambda item: item[1] - item[0]):
        members = [place for _, place in run]
        yield members[0], members[-1] + 1


def decode_joined(
    targets: Mapping[str, TensorSpec],
    names: Sequence[str],
    columns: Sequence[Columns],
    codecs: Mapping[str, Codec],
) -> dict[str, Array]:
    """Return the named targets of one track, evaluated and owned, made of `columns`; zeros where no
    page fills them. Takes some `DEVICE_BATCH_BYTES` beside them. Raises ForeignPage."""
    made: dict[str, Array] = {}
    only = tags_of(columns[0].meta) if len(columns) == 1 else ()
    for straight in (True, False):
        specs = [targets[name] for name in names if (name in only) == straight]
        for batch in batches_of(specs, DEVICE_BATCH_BYTES):
            arrays = (_straight if straight else _joined)(batch, columns, codecs)
            # In smaller steps: a decoder's intermediate arrays are several times its output.
            for step in batches_of([targets[name] for name in arrays], DEVICE_STEP_BYTES):
                evaluate([arrays[spec.name] for spec in step])
            made |= arrays
    return made


def _straight(
    batch: Sequence[TensorSpec], columns: Sequence[Columns], codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return lazy targets made by a codec: zeros around the parts decode to zeros."""
    (column,) = columns
    after = batch[0].shape[TOKEN_AXIS] - column.stop
    return _converted_of(batch, column, codecs, column.start, after)


def _joined(
    batch: Sequence[TensorSpec], columns: Sequence[Columns], codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    tokens = batch[0].shape[TOKEN_AXIS]
    pieces: dict[str, list[Array]] = {spec.name: [] for spec in batch}
    filled = 0
    for column in columns:
        found = _converted_of(batch, column, codecs)
        for spec in batch:
            pieces[spec.name] += [_gap(spec, column.start - filled), found[spec.name]]
        filled = column.stop
    for spec in batch:
        pieces[spec.name].append(_gap(spec, tokens - filled))
    # Joining copies, so that no target is a view of an array that was joined for several.
    return {name: mx.concatenate(parts, axis=TOKEN_AXIS) for name, parts in pieces.items()}


def _converted_of(
    batch: Sequence[TensorSpec],
    column: Columns,
    codecs: Mapping[str, Codec],
    before: int = 0,
    after: int = 0,
) -> dict[str, Array]:
    arrays = column.join(_behind({spec.name for spec in batch}, column.names), before, after)
    made: dict[str, Array] = {}
    for spec in batch:
        if spec.name not in made:
            made |= converted(spec, arrays, tags_of(column.meta), codecs)
    return made


def _behind(wanted: Collection[str], stored: Sequence[str]) -> set[str]:
    """Return the stored tensors that the wanted ones are, are parts of, or are made of."""
    near = {name.rpartition(".")[0] for name in wanted} | set(wanted)
    return {name for name in stored if name in near or name.rpartition(".")[0] in wanted}


def _gap(spec: TensorSpec, tokens: int) -> Array:
    return mx.zeros(with_tokens(spec.shape, tokens), DTYPES[spec.dtype])
