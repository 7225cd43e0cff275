"""Restoring on a GPU: few large concatenations instead of many small copies.

One MLX operation costs about 8 us whatever it moves, so tensors that lie side by side in their
pages and go to the same places are joined up to eight at a time, then made owned one by one.
A host view of an array that the device has written moves it through the host: none is taken.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, dtype_of, evaluate, zeros
from omlx_cache.restore.decode import Piece, convert, decode_joined
from omlx_cache.restore.plan import PageFailed, PageRead, Plan, is_direct
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, PageId, TensorSpec

BATCH = 8


class _Job(NamedTuple):
    """One target, where its tokens come from, and its byte offset in each page."""

    target: TensorSpec
    pieces: tuple[Piece, ...]
    offsets: tuple[int, ...]
    widths: tuple[int, ...]


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


def _decoded(plan: Plan, items: Sequence[tuple[PageRead, Page]]) -> dict[str, Array]:
    """Return the token targets when some page is encoded; raises ForeignPage."""
    pieces: dict[str, list[Piece]] = {}
    for read, _page in items:
        for copy in read.copies:
            if copy.hi >= 0 and plan.targets[copy.tensor].nbytes:
                piece = Piece(copy.to, copy.lo, copy.hi, read.use.page)
                pieces.setdefault(copy.tensor, []).append(piece)
    pages = {read.use.page: page for read, page in items}
    return decode_joined(plan.targets, pieces, pages, plan.codecs)


def _snapshots(plan: Plan, items: Sequence[tuple[PageRead, Page]]) -> dict[str, Array]:
    """Return owned copies of the tensors that are restored whole."""
    made: dict[str, Array] = {}
    for read, page in items:
        if any(copy.hi < 0 for copy in read.copies):
            try:
                arrays = convert(page, read.expected, plan.codecs)
            except ForeignPage as error:
                raise PageFailed(read.use.page, error, joins=True) from error
            for copy in read.copies:
                spec = plan.targets[copy.tensor]
                flat = arrays[copy.tensor].reshape(-1)
                # Joining with nothing copies, so that the page is not pinned.
                made[copy.tensor] = mx.concatenate([flat, flat[:0]]).reshape(spec.shape)
    return made


def _joined(plan: Plan, items: Sequence[tuple[PageRead, Page]]) -> dict[str, Array]:
    """Return the token targets of plain pages, evaluated batch by batch."""
    payloads = {page.meta.id: page.payload for _read, page in items}
    jobs = _jobs(plan, [read for read, _page in items])
    made: dict[str, Array] = {}
    for _same, run in groupby(
        jobs, key=lambda job: (job.target.dtype, job.target.shape, job.pieces)
    ):
        listed = list(run)
        while listed:
            batch = _side_by_side(listed[:BATCH])
            listed = listed[len(batch) :]
            arrays = _join(batch, payloads)
            evaluate(arrays)
            made.update(zip((job.target.name for job in batch), arrays, strict=True))
    return made


def _jobs(plan: Plan, reads: Sequence[PageRead]) -> list[_Job]:
    pieces: dict[str, list[tuple[Piece, int, int]]] = {}
    for read in reads:
        offset = 0
        places = {}
        for spec in read.expected:
            places[spec.name] = (offset, spec.nbytes)
            offset += spec.nbytes
        for copy in read.copies:
            if copy.hi >= 0:
                piece = Piece(copy.to, copy.lo, copy.hi, read.use.page)
                pieces.setdefault(copy.tensor, []).append((piece, *places[copy.tensor]))
    jobs = []
    for name, found in pieces.items():
        target = plan.targets[name]
        if target.nbytes == 0:
            continue
        found.sort(key=lambda f: f[0].to)
        places_of = tuple(f[1] for f in found)
        widths = tuple(f[2] for f in found)
        jobs.append(_Job(target, tuple(f[0] for f in found), places_of, widths))
    return jobs


def _side_by_side(jobs: Sequence[_Job]) -> list[_Job]:
    """Return the leading jobs whose tensors touch in every page."""
    batch = [jobs[0]]
    for job in jobs[1:]:
        last = batch[-1]
        if job.offsets != tuple(o + w for o, w in zip(last.offsets, last.widths, strict=True)):
            break
        batch.append(job)
    return batch


def _join(batch: Sequence[_Job], payloads: dict[PageId, Array]) -> list[Array]:
    first = batch[0]
    shape = first.target.shape
    dtype = dtype_of(first.target.dtype)
    rows = len(batch) * shape[0]
    parts: list[Array] = []
    filled = 0
    for piece, offset, width in zip(first.pieces, first.offsets, first.widths, strict=True):
        if piece.to < filled:
            piece = piece._replace(lo=piece.lo + filled - piece.to, to=filled)
        if piece.hi <= piece.lo:
            continue
        if piece.to > filled:
            parts.append(_gap(shape, rows, piece.to - filled, dtype))
        raw = payloads[piece.page][offset : offset + width * len(batch)]
        block = raw.view(dtype).reshape(rows, *shape[1:TOKEN_AXIS], -1, *shape[TOKEN_AXIS + 1 :])
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
