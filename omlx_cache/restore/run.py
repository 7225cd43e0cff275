"""From a look-up to live caches: plan, read, and once more below the first page that failed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from omlx_cache.adapters.base import paged_of
from omlx_cache.arrays.mlxio import Array, has_memory_of_its_own, on_host
from omlx_cache.restore.device import DeviceTargets
from omlx_cache.restore.fallbacks import fallbacks
from omlx_cache.restore.fetch import fetch_all
from omlx_cache.restore.host import HostTargets
from omlx_cache.restore.lookup import PageUse, RestorePoint
from omlx_cache.restore.plan import PageFailed, PageRead, Plan, batches, is_direct
from omlx_cache.restore.source import InMemory, PageSource, held_pages
from omlx_cache.restore.walk import DISK_PASSES, Walk, plan_for
from omlx_cache_storage.errors import PageUnanswered
from omlx_cache_storage.interrupts import result_of
from omlx_cache_storage.page import REMOTE, Page, PageId

MEMORY_PASSES = 3
"""Walks after that which use what is in memory only."""


class Restored(NamedTuple):
    """What a restore did: live caches at `point.position`, fresh ones at 0. How many tokens and
    bytes the cold tier and other machines gave, of `nbytes`; the first `local_tokens` were here."""

    prompt_cache: list[Any]
    point: RestorePoint
    cold_tokens: int = 0
    nbytes: int = 0
    cold_bytes: int = 0
    remote_tokens: int = 0
    remote_bytes: int = 0
    local_tokens: int = 0


def restore(walk: Walk) -> Restored:
    """Rebuild the fresh caches of a walk as far as possible and return how far that was.

    Evaluates MLX, reads the disk, and marks what it used as used, at the walk's stamp of the
    store's clock. Never raises for what a disk or a page does: the prefix before such a page is
    restored, after a bounded number of reads, and the point's reason says why. The caches are
    untouched on a miss. Counts no miss: the reason is the caller's to count.
    """
    source, work = walk.source, Work()
    for attempt in range(DISK_PASSES + MEMORY_PASSES):
        disk = attempt < DISK_PASSES and not work.is_apart
        memory = None if disk else work.in_memory(source)
        point = walk.find(memory)
        if not point.position:
            return Restored(walk.prompt_cache, point)
        try:
            held = memory.pages if memory is not None else held_pages(source, point, work.arrived)
            plan = plan_for(walk, point, held, disk=memory is None)
            arrays = work.carry_out(source, plan, held)
        except PageFailed as error:
            work.is_apart |= isinstance(error.cause, PageUnanswered)
            walk.learn(error, point, held, disk=not work.is_apart)
            continue
        return rebuild(walk, point, plan, arrays, work.read)
    point = RestorePoint(0, {}, walk.failure, point.matched, point.wanted_state)
    return Restored(walk.prompt_cache, point)


@dataclass(slots=True)
class Work:
    """What the walks of one restore have brought together: nothing is read twice.

    `arrived` has pages in memory, `read` the ids of those that came from the disk, and `targets`
    the buffers of the last walk. `is_apart`: the disk hangs, and reads that go on may still write
    into them.
    """

    arrived: dict[PageId, Page] = field(default_factory=dict)
    read: set[PageId] = field(default_factory=set)
    targets: HostTargets | DeviceTargets | None = None
    is_apart: bool = False

    def in_memory(self, source: PageSource) -> InMemory:
        filled = {} if self.targets is None else self.targets.filled
        return InMemory(source, self.arrived, filled)

    def carry_out(
        self, source: PageSource, plan: Plan, held: Mapping[PageId, Page]
    ) -> dict[str, Array]:
        """Return the filled targets by tensor name, evaluated and owned; raises PageFailed."""
        unified = not has_memory_of_its_own()
        begun = isinstance(self.targets, DeviceTargets)
        fresh = not (begun or held or plan.encoded)
        straight = unified and (fresh or isinstance(self.targets, HostTargets))
        if on_host() or straight:
            return self._fill_on_host(source, plan, held)
        return self._fill_on_device(source, plan, held)

    def _fill_on_host(
        self, source: PageSource, plan: Plan, held: Mapping[PageId, Page]
    ) -> dict[str, Array]:
        before = self.targets if isinstance(self.targets, HostTargets) else None
        targets = self.targets = HostTargets(plan, before=before, apart=self.is_apart)
        left = [read for read in plan.reads if read.use.page not in targets.filled]
        fill_from(source, targets, [r for r in left if r.use.page in held], held)
        missing = self._missing(left, held)
        fetch_all(source, missing, targets.take_all, targets)
        return targets.arrays()

    def _fill_on_device(
        self, source: PageSource, plan: Plan, held: Mapping[PageId, Page]
    ) -> dict[str, Array]:
        """While a batch of pages is joined, the next ones are read."""
        before = self.targets if isinstance(self.targets, DeviceTargets) else None
        targets = self.targets = DeviceTargets(plan, before=before)
        left = [read for read in plan.reads if read.use.page not in targets.filled]
        try:
            targets.take_all([read for read in left if read.use.page in held], held)
            missing = self._missing(left, held)
            fetch_all(source, missing, targets.take_all, step_bytes=targets.batch_bytes // 4)
            return targets.arrays()
        finally:
            # What was read and not yet brought to its place is not read again.
            self.arrived |= targets.aside()

    def _missing(self, reads: Sequence[PageRead], held: Mapping[PageId, Page]) -> list[PageRead]:
        missing = [read for read in reads if read.use.page not in held]
        self.read |= {read.use.page for read in missing}
        return missing


def fill_from(
    source: PageSource,
    targets: HostTargets,
    reads: Sequence[PageRead],
    held: Mapping[PageId, Page],
) -> None:
    """Copy or decode pages that are in memory into their targets, on threads that no disk holds up.
    Raises PageFailed."""
    direct: list[PageRead] = []
    encoded: list[PageRead] = []
    for read in reads:
        (direct if is_direct(read, held[read.use.page].meta) else encoded).append(read)
    copies = [source.copy_pool.submit(targets.take_all, b, held) for b in batches(direct)]
    copies += [source.copy_pool.submit(targets.take_all, [read], held) for read in encoded]
    taken = [result_of(copy) for copy in copies]
    if not all(taken):
        raise RuntimeError("the buffers were closed while they were filled")


def rebuild(
    walk: Walk,
    point: RestorePoint,
    plan: Plan,
    arrays: Mapping[str, Array],
    from_disk: set[PageId],
) -> Restored:
    """Give the filled arrays to the fresh caches, and mark the pages as used."""
    for leaf_plan in plan.leaves:
        fields = {field: arrays[name] for field, name in leaf_plan.fields.items()}
        if fields:
            leaf_plan.leaf.adapter.rebuild(
                leaf_plan.leaf.cache, fields, point.position, leaf_plan.phase
            )
    groups = walk.layout.groups
    walk.source.touch(
        point.root_first,
        walk.stamp,
        lambda tier: fallbacks(walk.chain, groups, tier, walk.limit),
    )
    uses = point.all_uses
    far = {use.page for use in uses if use.info.tier == REMOTE}
    from_afar, from_disk = from_disk & far, from_disk - far
    return Restored(
        walk.prompt_cache,
        point,
        _tokens(point, from_disk),
        sum(use.info.nbytes for use in uses),
        sum(use.info.nbytes for use in uses if use.page in from_disk),
        _tokens(point, from_afar),
        sum(use.info.nbytes for use in uses if use.page in from_afar),
        min(
            (use.info.position - use.info.held for use in uses if use.page in far),
            default=point.position,
        ),
    )


def mark_known(walk: Walk, point: RestorePoint) -> None:
    """Mark the blocks behind a restore point as used that are known and are computed all the same:
    they are stored already, and what is stored next must not push out its own root."""
    paged, size = paged_of(walk.layout.groups), walk.chain.block_size
    first, last = point.position // size, point.matched // size
    if paged is not None and first < last:
        keys = walk.chain.boundaries(first, last)[1:]
        walk.source.touch([PageId(key, paged.name) for key in keys], walk.stamp)


def _tokens(point: RestorePoint, pages: set[PageId]) -> int:
    """Count the tokens of the first group that are in some pages."""
    uses: Sequence[PageUse] = next(iter(point.uses.values()))
    if not any(use.info.held for use in uses):
        return point.position if uses[0].page in pages else 0
    return min(point.position, sum(use.info.held for use in uses if use.page in pages))
