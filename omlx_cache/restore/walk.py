"""Where a restore stands: the prefix that it can still hope for, and the plan for it."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from omlx_cache.adapters.base import GroupSpec, Phase
from omlx_cache.pages.layout import Layout
from omlx_cache.restore.blame import misfits
from omlx_cache.restore.gate import RestoreGate
from omlx_cache.restore.lookup import PageUse, PageView, RestorePoint, find_restore_point
from omlx_cache.restore.plan import PageFailed, Plan, make_plan
from omlx_cache.restore.source import PageSource
from omlx_cache_storage.errors import ForeignPage, PageError, PageUnreadable
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageId, PageMeta

_log = logging.getLogger(__name__)

DISK_PASSES = 2
"""Walks that may read the disk: the first, and one below the page that failed it."""


@dataclass(slots=True)
class Walk:
    """Where restore points are looked for, and what failures have taught so far. Not thread-safe:
    one thread at a time."""

    source: PageSource
    layout: Layout
    chain: KeyChain
    limit: int
    capacity: int
    known: frozenset[int]
    stamp: int | None = None
    gate: RestoreGate | None = None
    bad: set[PageId] = field(default_factory=set)
    failure: str | None = None
    models: dict[GroupSpec, PageMeta] = field(default_factory=dict)

    def copy(self) -> "Walk":
        """Return a walk that may learn without this one's knowing."""
        return replace(self, bad=set(self.bad), models=dict(self.models))

    def find(self, view: PageView | None = None, *, wait: float | None = None) -> RestorePoint:
        """Return the longest prefix that a view of the pages can restore; of the source the longest
        that its gate admits. Reads nothing. Waits for other machines to say what they have, at most
        `wait` seconds."""
        point = find_restore_point(
            self.chain,
            self.layout.groups,
            view or self.source,
            limit=self.limit,
            bad=frozenset(self.bad),
            known=self.known,
            gate=self.gate if view is None else None,
            wait=wait,
        )
        if self.failure is None:
            return point
        return replace(point, reason=self.failure)

    def learn(
        self,
        failed: PageFailed,
        point: RestorePoint,
        held: Mapping[PageId, Page],
        *,
        disk: bool = True,
    ) -> None:
        """Never use a page again that failed, nor what lies behind it; forgets a sound page that
        does not fit its group, so that a commit writes a right one."""
        _log.warning("page %s: %s", failed.page.key.hex()[:16], failed.cause)
        self.failure = failed.cause.reason
        blamed = {failed.page}
        if failed.joins:
            stored = self.source.meta if disk else None
            odd = misfits(failed.page, point, self.layout.leaves, held, stored)
            for page in odd:
                self.source.forget(page)
            blamed = odd or blamed
        self.bad |= blamed
        starts = [_start(use) for use in point.all_uses if use.page in blamed]
        self.limit = min([self.limit, *starts])


def plan_for(
    walk: Walk, point: RestorePoint, held: Mapping[PageId, Page], *, disk: bool = True
) -> Plan:
    """Return the plan to restore a point; reads a header for each group that is not in memory.

    Raises PageFailed, instead of any reading without `disk`.
    """
    phases: dict[str, Phase] = {}
    for group, uses in point.uses.items():
        use = uses[-1]
        if group.kind == "paged":
            # A page in memory, or the first that a failing disk would not give.
            use = next((u for u in uses if u.page in held), uses[0])
            known = walk.models.get(group)
            if use.page not in held and known is not None and known.id not in walk.bad:
                continue
        meta = _meta(walk.source, use.page, held, disk=disk)
        walk.models[group] = meta
        if group.kind == "state" or use.info.position == point.position:
            phases |= _phases(meta)
    for group, meta in walk.models.items():
        if group.kind == "paged":
            phases |= _phases(meta)
    return make_plan(walk.layout.leaves, point, walk.models, phases, walk.capacity)


def _start(use: PageUse) -> int:
    """Return the longest prefix that needs nothing of a page."""
    return use.info.position - (use.info.held or 1)


def _meta(source: PageSource, page: PageId, held: Mapping[PageId, Page], *, disk: bool) -> PageMeta:
    if page in held:
        return held[page].meta
    try:
        if not disk:
            raise PageUnreadable("the disk may not be waited for")
        return source.meta(page)
    except PageError as error:
        raise PageFailed(page, error) from error


def _phases(meta: PageMeta) -> dict[str, Phase]:
    """Return the ring phases that a page carries, by leaf; raises PageFailed."""
    if not meta.extra:
        return {}
    try:
        phases: dict[str, Phase] = json.loads(meta.extra)
        if all(type(n) is int for phase in phases.values() for n in phase.values()):
            return phases
        cause = ForeignPage(f"the phases {meta.extra[:80]!r} are not numbers")
    except (ValueError, AttributeError, RecursionError):
        cause = ForeignPage(f"the phases {meta.extra[:80]!r} cannot be read")
    raise PageFailed(meta.id, cause, joins=True)
