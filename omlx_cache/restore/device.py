"""The hot part of a restore on a GPU: few large concatenations instead of many small copies.

One MLX operation costs about 8 us whatever it moves, so tensors that lie side by side in their
pages and go to the same places are joined up to eight at a time, then made owned one by one.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import mlx.core as mx

from omlx_cache.mlxio import TOKEN_AXIS, Array, dtype_of, evaluate
from omlx_cache.restore.plan import PageRead, Plan
from omlx_cache_storage.page import Page, PageId, TensorSpec

BATCH = 8


class _Piece(NamedTuple):
    """Tokens [lo, hi) of a page go to index `to`."""

    page: PageId
    lo: int
    hi: int
    to: int


class _Job(NamedTuple):
    """One target, where its tokens come from, and its byte offset in each page."""

    target: TensorSpec
    pieces: tuple[_Piece, ...]
    offsets: tuple[int, ...]
    widths: tuple[int, ...]


def join_hot(plan: Plan, hot: Sequence[tuple[PageRead, Page]]) -> dict[str, Array]:
    """Return the token targets that hot pages contribute to, evaluated; cold parts are zeros.

    Snapshots are left to the caller. Evaluates batch by batch, so it peaks at the targets plus
    one batch.
    """
    payloads = {page.meta.id: page.payload for _read, page in hot}
    jobs = _jobs(plan, [read for read, _page in hot])
    made: dict[str, Array] = {}
    for _shape, run in groupby(
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
    pieces: dict[str, list[tuple[_Piece, int, int]]] = {}
    for read in reads:
        offset = 0
        places = {}
        for spec in read.expected:
            places[spec.name] = (offset, spec.nbytes)
            offset += spec.nbytes
        for copy in read.copies:
            if copy.hi >= 0:
                piece = _Piece(read.use.page, copy.lo, copy.hi, copy.to)
                pieces.setdefault(copy.tensor, []).append((piece, *places[copy.tensor]))
    jobs = []
    for name, found in pieces.items():
        target = plan.targets[name]
        if target.nbytes == 0 or target.shape[0] != 1:
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
    parts: list[Array] = []
    filled = 0
    for piece, offset, width in zip(first.pieces, first.offsets, first.widths, strict=True):
        if piece.to < filled:
            piece = piece._replace(lo=piece.lo + filled - piece.to, to=filled)
        if piece.hi <= piece.lo:
            continue
        if piece.to > filled:
            parts.append(_gap(shape, len(batch), piece.to - filled, dtype))
        raw = payloads[piece.page][offset : offset + width * len(batch)]
        block = raw.view(dtype).reshape(
            len(batch), *shape[1:TOKEN_AXIS], -1, *shape[TOKEN_AXIS + 1 :]
        )
        parts.append(block[:, :, piece.lo : piece.hi])
        filled = piece.to + piece.hi - piece.lo
    if filled < shape[TOKEN_AXIS]:
        parts.append(_gap(shape, len(batch), shape[TOKEN_AXIS] - filled, dtype))
    if len(parts) == 1:
        parts.append(_gap(shape, len(batch), 0, dtype))
    joined = mx.concatenate(parts, axis=TOKEN_AXIS)
    if len(batch) == 1:
        return [joined]
    return [mx.contiguous(joined[i : i + 1]) for i in range(len(batch))]


def _gap(shape: tuple[int, ...], rows: int, tokens: int, dtype: Any) -> Array:
    return mx.zeros((rows, *shape[1:TOKEN_AXIS], tokens, *shape[TOKEN_AXIS + 1 :]), dtype=dtype)
