"""Encoded pages: one page's tensors in the form that a target wants, or those of many, joined.

On a GPU the parts of all pages are joined first, then decoded once a tensor, straight into the
restored buffer. What cannot be joined exactly raises ForeignPage: a miss.
"""

from collections.abc import Iterator, Mapping, Sequence

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, dtype_name, dtype_of, evaluate
from omlx_cache.codecs import Codec, codec_named
from omlx_cache.pages.tensors import Tag, Tags, page_arrays, tags_of
from omlx_cache.restore.columns import Columns
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, TensorSpec

HOST_BATCH_BYTES = 1 << 20
"""What is decoded on the CPU before MLX is asked to evaluate: what stays in a core's cache."""
DEVICE_BATCH_BYTES = 1 << 30
"""What is joined together, in dense bytes: each time asks MLX for something by page."""
DEVICE_STEP_BYTES = 256 << 20
"""What is decoded before MLX is asked to evaluate."""


def convert(
    page: Page, expected: Sequence[TensorSpec], codecs: Mapping[str, Codec]
) -> Iterator[dict[str, Array]]:
    """Yield a page's tensors by name in the form that is expected, evaluated, some
    `HOST_BATCH_BYTES` at a time; raises ForeignPage.

    Parts are decoded for a dense target; a dense tensor is packed with `codecs` (by dense name)
    for a packed one. Packed tensors never take a dense detour.
    """
    arrays = page_arrays(page)
    tags = tags_of(page.meta)
    specs = {spec.name: spec for spec in expected}
    seen: set[str] = set()
    for batch in _batches(expected, HOST_BATCH_BYTES):
        made: dict[str, Array] = {}
        for spec in batch:
            if spec.name not in seen:
                found = converted(spec, arrays, tags, codecs)
                made |= {name: array for name, array in found.items() if name in specs}
                seen |= found.keys()
        for name, array in made.items():
            _refuse_other_shape(array, specs[name])
        evaluate(list(made.values()))
        yield made


def _refuse_other_shape(array: Array, spec: TensorSpec) -> None:
    if tuple(array.shape) != spec.shape or dtype_name(array) != spec.dtype:
        raise ForeignPage(
            f"{spec.name} is {dtype_name(array)} {tuple(array.shape)}, "
            f"{spec.dtype} {spec.shape} was expected"
        )


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
            dense = codec_named(tag.codec).decode(parts, dtype_of(tag.dtype))
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
    names: Sequence[str],
    columns: Sequence[Columns],
    codecs: Mapping[str, Codec],
) -> dict[str, Array]:
    """Return those targets of one track that are named, evaluated and owned, made of `columns`;
    what no page fills is zeros.

    `codecs` are those of packed targets, by dense tensor name. Takes some `DEVICE_BATCH_BYTES`
    beside the targets. Raises ForeignPage.
    """
    made: dict[str, Array] = {}
    only = columns[0].tags if len(columns) == 1 else {}
    for straight in (True, False):
        specs = [targets[name] for name in names if (name in only) == straight]
        for batch in _batches(specs, DEVICE_BATCH_BYTES):
            arrays = (_straight if straight else _joined)(batch, columns, codecs)
            # In smaller steps: a decoder's intermediate arrays are several times what it makes.
            for step in _batches([targets[name] for name in arrays], DEVICE_STEP_BYTES):
                evaluate([arrays[spec.name] for spec in step])
            made |= arrays
    return made


def _batches(specs: Sequence[TensorSpec], most: int) -> Iterator[list[TensorSpec]]:
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


def _straight(
    batch: Sequence[TensorSpec], columns: Sequence[Columns], codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return lazy targets that are what a codec makes: zeros around the parts decode to zeros."""
    (column,) = columns
    after = batch[0].shape[TOKEN_AXIS] - column.stop
    return _converted(batch, column, codecs, column.start, after)


def _joined(
    batch: Sequence[TensorSpec], columns: Sequence[Columns], codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return lazy targets, which are of one length, joined from several pieces."""
    tokens = batch[0].shape[TOKEN_AXIS]
    pieces: dict[str, list[Array]] = {spec.name: [] for spec in batch}
    filled = 0
    for column in columns:
        found = _converted(batch, column, codecs)
        for spec in batch:
            pieces[spec.name] += [_gap(spec, column.start - filled), found[spec.name]]
        filled = column.stop
    for spec in batch:
        pieces[spec.name].append(_gap(spec, tokens - filled))
    # Joining copies, so that no target is a view of what was joined for several.
    return {name: mx.concatenate(parts, axis=TOKEN_AXIS) for name, parts in pieces.items()}


def _converted(
    batch: Sequence[TensorSpec],
    column: Columns,
    codecs: Mapping[str, Codec],
    before: int = 0,
    after: int = 0,
) -> dict[str, Array]:
    behind = _behind([spec.name for spec in batch], column.names)
    arrays = column.join(behind, before, after)
    made: dict[str, Array] = {}
    for spec in batch:
        if spec.name not in made:
            made |= converted(spec, arrays, column.tags, codecs)
    return made


def _behind(wanted: Sequence[str], stored: Sequence[str]) -> set[str]:
    """Return the stored tensors that targets are made of: themselves, their parts, or their
    whole."""
    known = set(stored)
    bases = {name.rpartition(".")[0] for name in wanted}
    own = {name for name in wanted if name in known}
    parts = {name for name in stored if name.rpartition(".")[0] in wanted}
    return own | parts | (bases & known)


def _gap(spec: TensorSpec, tokens: int) -> Array:
    shape = list(spec.shape)
    shape[TOKEN_AXIS] = tokens
    return mx.zeros(shape, dtype=dtype_of(spec.dtype))
