"""What a shorter plan takes over of buffers that a longer one has begun to fill."""

from collections.abc import Collection, Mapping, Sequence

from omlx_cache.adapters.base import PAGED
from omlx_cache.restore.plan import Plan, Span
from omlx_cache_storage.page import PageId, PageInfo


def reusable(before: Plan, plan: Plan) -> set[str]:
    """Return the growing buffers that both plans want alike.

    A window's buffers have another order at another position, and a state is valid at one.
    """
    growing = {read.geometry for read in plan.reads if read.use.page.group == PAGED.name}
    names = {spec.name for geometry in growing for spec in geometry.tensors}
    return {name for name in names if before.targets.get(name) == plan.targets[name]}


def still_filled(
    filled: Mapping[PageId, PageInfo], plan: Plan, fresh: Collection[str]
) -> dict[PageId, PageInfo]:
    """Return the pages of a plan that are in the buffers taken over, and go to no fresh one."""
    new = {plan.tracks[name] for name in fresh}
    return {
        read.use.page: filled[read.use.page]
        for read in plan.reads
        if read.use.page in filled and not any(span.track in new for span in read.spans)
    }


def gaps(plan: Plan) -> dict[str, list[slice]]:
    """Return by target where no page of a plan puts a token: room to grow must not show what a
    longer plan put there."""
    filled: dict[int, list[Span]] = {}
    for read in plan.reads:
        for span in read.spans:
            filled.setdefault(span.track, []).append(span)
    found = {track: _gaps(spans) for track, spans in filled.items()}
    return {name: found.get(track, [slice(None)]) for name, track in plan.tracks.items()}


def _gaps(spans: Sequence[Span]) -> list[slice]:
    """Return where the tensors of a track have no token, the room behind them included."""
    between = []
    at = 0
    for span in sorted(spans, key=lambda span: span.to):
        if span.hi < 0:
            return []
        if at < span.to:
            between.append(slice(at, span.to))
        at = max(at, span.to + span.hi - span.lo)
    return [*between, slice(at, None)]
