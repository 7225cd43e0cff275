"""Restoring on a GPU: few large concatenations instead of many small copies.

One MLX operation costs about 8 us whatever it moves, so tensors that lie side by side in their
pages and go to the same places are joined up to eight at a time, then made owned one by one.
A host view of an array that the device has written moves it through the host: none is taken.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, dtype_of, evaluate, zeros
from omlx_cache.restore.columns import Piece, columns_of, in_order
from omlx_cache.restore.decode import convert, decode_joined
from omlx_cache.restore.plan import PageFailed, PageRead, Plan, is_direct
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, PageId, TensorSpec

BATCH = 8


def join_on_device(plan: Plan, pages: Mapping[PageId, Page]) -> dict[str, Array]:
    """Return the filled targets by tensor name, evaluated and owned; raises PageFailed.

    Every page of the plan is in memory: `pages` has it.
    """
    items = [(read, pages[read.use.page]) for read in plan.reads]
    forms = {is_direct(read, page.meta) for read, page in items}
    try:
        made = _decoded(plan, items) if False in forms else _joined(plan, items)
    except ForeignPage as error:
        raise PageFailed(items[-1][0].use.page, error, joins=True) from error
    made |= _snapshots(plan, items)
    missing = {name: spec for name, spec in plan.targets.items() if name not in made}
    made |= {name: zeros(spec.shape, spec.dtype) for name, spec in missing.items()}
    evaluate(list(made.values()))
    return made


def _pieces(plan: Plan) -> dict[int, list[Piece]]:
    """Return by track where the tokens of its tensors come from, none twice."""
    pieces: dict[int, list[Piece]] = {}
    for read in plan.reads:
        for span in read.spans:
            if span.hi >= 0:
                piece = Piece(span.to, span.lo, span.hi, read.use.page)
                pieces.setdefault(span.track, []).append(piece)
    return {track: in_order(found) for track, found in pieces.items()}


def _decoded(plan: Plan, items: Sequence[tuple[PageRead, Page]]) -> dict[str, Array]:
    """Return the token targets when some page is encoded; raises ForeignPage."""
    pages = {read.use.page: page for read, page in items}
    made: dict[str, Array] = {}
    for track, pieces in _pieces(plan).items():
        names = [n for n, at in plan.tracks.items() if at == track and plan.targets[n].nbytes]
        made |= decode_joined(plan.targets, names, columns_of(pieces, pages), plan.codecs)
    return made


def _snapshots(plan: Plan, items: Sequence[tuple[PageRead, Page]]) -> dict[str, Array]:
    """Return owned copies of the tensors that are restored whole."""
    made: dict[str, Array] = {}
    for read, page in items:
        if any(span.hi < 0 for span in read.spans):
            arrays: dict[str, Array] = {}
            try:
                for batch in convert(page, read.geometry.tensors, plan.codecs):
                    arrays |= batch
            except ForeignPage as error:
                raise PageFailed(read.use.page, error, joins=True) from error
            for spec in read.geometry.tensors:
                flat = arrays[spec.name].reshape(-1)
                # Joining with nothing copies, so that the page is not pinned.
                made[spec.name] = mx.concatenate([flat, flat[:0]]).reshape(spec.shape)
    return made


def _joined(plan: Plan, items: Sequence[tuple[PageRead, Page]]) -> dict[str, Array]:
    """Return the token targets of plain pages, evaluated batch by batch."""
    found = {read.use.page: (read.geometry, page.payload) for read, page in items}
    made: dict[str, Array] = {}
    for track, pieces in _pieces(plan).items():
        payloads = [found[piece.page][1] for piece in pieces]
        # The same stretch in every page: pages of a group differ in their token counts only.
        columns = zip(*(found[piece.page][0].of(track) for piece in pieces), strict=True)
        for column in columns:
            names = column[0].names
            for first in range(0, len(names), BATCH):
                batch = names[first : first + BATCH]
                stop = first + len(batch)
                raw = [
                    payload[s.offset + first * s.nbytes : s.offset + stop * s.nbytes]
                    for payload, s in zip(payloads, column, strict=True)
                ]
                arrays = _join([plan.targets[name] for name in batch], pieces, raw)
                evaluate(arrays)
                made.update(zip(batch, arrays, strict=True))
    return made


def _join(
    batch: Sequence[TensorSpec], pieces: Sequence[Piece], raw: Sequence[Array]
) -> list[Array]:
    shape = batch[0].shape
    dtype = dtype_of(batch[0].dtype)
    rows = len(batch) * shape[0]
    parts: list[Array] = []
    filled = 0
    for piece, data in zip(pieces, raw, strict=True):
        if piece.to > filled:
            parts.append(_gap(shape, rows, piece.to - filled, dtype))
        block = data.view(dtype).reshape(rows, *shape[1:TOKEN_AXIS], -1, *shape[TOKEN_AXIS + 1 :])
        parts.append(block[:, :, piece.lo : piece.hi])
        filled = piece.to + piece.hi - piece.lo
    if filled < shape[TOKEN_AXIS]:
        parts.append(_gap(shape, rows, shape[TOKEN_AXIS] - filled, dtype))
    if len(parts) == 1:
        parts.append(_gap(shape, rows, 0, dtype))
    joined = mx.concatenate(parts, axis=TOKEN_AXIS)
    if len(batch) == 1:
        return [joined]
    return [mx.contiguous(joined[i : i + shape[0]]) for i in range(0, rows, shape[0])]


def _gap(shape: tuple[int, ...], rows: int, tokens: int, dtype: Any) -> Array:
    return mx.zeros((rows, *shape[1:TOKEN_AXIS], tokens, *shape[TOKEN_AXIS + 1 :]), dtype=dtype)
