"""Encoded pages on a GPU: the parts of all pages are joined first, then decoded once a tensor,
straight into the restored buffer."""

from collections.abc import Callable, Container, Mapping, Sequence

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, dtype_of, evaluate
from omlx_cache.restore.columns import Columns, batches_of
from omlx_cache_storage.page import PageMeta, TensorSpec

DEVICE_BATCH_BYTES = 1 << 30
"""What is joined together, in dense bytes: each time asks MLX for something by page."""
DEVICE_STEP_BYTES = 256 << 20
"""What is decoded before MLX is asked to evaluate."""

Convert = Callable[[TensorSpec, Mapping[str, Array], PageMeta], Mapping[str, Array]]
"""Makes a lazy tensor, and perhaps others, of what pages like one have stored."""


def decode_joined(
    targets: Mapping[str, TensorSpec],
    names: Sequence[str],
    columns: Sequence[Columns],
    convert: Convert,
    encoded: Callable[[PageMeta], Container[str]],
) -> dict[str, Array]:
    """Return those targets of one track that are named, evaluated and owned, made of `columns`;
    what no page fills is zeros.

    `encoded` names the tensors that pages hold encoded. Takes some `DEVICE_BATCH_BYTES` beside the
    targets. Raises ForeignPage.
    """
    made: dict[str, Array] = {}
    only = encoded(columns[0].meta) if len(columns) == 1 else ()
    for straight in (True, False):
        specs = [targets[name] for name in names if (name in only) == straight]
        for batch in batches_of(specs, DEVICE_BATCH_BYTES):
            arrays = (_straight if straight else _joined)(batch, columns, convert)
            # In smaller steps: a decoder's intermediate arrays are several times what it makes.
            for step in batches_of([targets[name] for name in arrays], DEVICE_STEP_BYTES):
                evaluate([arrays[spec.name] for spec in step])
            made |= arrays
    return made


def _straight(
    batch: Sequence[TensorSpec], columns: Sequence[Columns], convert: Convert
) -> dict[str, Array]:
    """Return lazy targets that are what a codec makes: zeros around the parts decode to zeros."""
    (column,) = columns
    after = batch[0].shape[TOKEN_AXIS] - column.stop
    return _converted(batch, column, convert, column.start, after)


def _joined(
    batch: Sequence[TensorSpec], columns: Sequence[Columns], convert: Convert
) -> dict[str, Array]:
    """Return lazy targets, which are of one length, joined from several pieces."""
    tokens = batch[0].shape[TOKEN_AXIS]
    pieces: dict[str, list[Array]] = {spec.name: [] for spec in batch}
    filled = 0
    for column in columns:
        found = _converted(batch, column, convert)
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
    convert: Convert,
    before: int = 0,
    after: int = 0,
) -> dict[str, Array]:
    behind = _behind([spec.name for spec in batch], column.names)
    arrays = column.join(behind, before, after)
    made: dict[str, Array] = {}
    for spec in batch:
        if spec.name not in made:
            made |= convert(spec, arrays, column.meta)
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
