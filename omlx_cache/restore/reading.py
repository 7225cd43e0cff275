"""The restore engine: pages come from the tiers to where a restore wants them, each read once.

One `Reading` brings the pages of a plan to one of three places: on the host straight into the final
buffers, on a GPU into buffers that are joined batch by batch, and, when the model's thread is
busy with other requests, into staged pages that it joins later. What memory has room for goes to
the hot tier on the way.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, paged_of
from omlx_cache.arrays.mlxio import (
    Array,
    HostView,
    allocate_payload,
    blank_bytes,
    has_memory_of_its_own,
    on_device,
    on_host,
    writable_view,
)
from omlx_cache.restore.device import DeviceTargets
from omlx_cache.restore.fallbacks import fallbacks
from omlx_cache.restore.host import HostTargets
from omlx_cache.restore.lookup import PageUse, RestorePoint
from omlx_cache.restore.plan import PageFailed, PageRead, Plan, batches, is_direct
from omlx_cache.restore.source import InMemory, PageSource, held_pages
from omlx_cache.restore.walk import DISK_PASSES, Walk, plan_for
from omlx_cache_storage.errors import PageError, PageUnanswered, PageUnreadable
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.interrupts import result_of
from omlx_cache_storage.page import REMOTE, Buffer, Page, PageId, PageMeta
from omlx_cache_storage.readers import came, result_along

MEMORY_PASSES = 3
"""Passes after those that read the disk, which use what is in memory only."""
READ_AHEAD = 12
"""Pages asked for at a time: enough to keep a disk busy, few enough that encoded ones stay
small."""
READ_TOGETHER = 32
"""Small pages that one task reads, `READ_BYTES` of them at most: reading one is Python's work more
than the disk's, and threads that are at that together hold each other up."""
READ_BYTES = 1 << 20


class Closed(Exception):
    """Nobody wants what is read any more."""


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


class Reading:
    """What the passes of one restore have brought together: nothing is read twice.

    One thread at a time uses it; `close` may come from any. `pool` reads, and `answers` waits for
    a read, False when it is given up. `arrived` has staged pages, `read` the ids of those that
    came from the disk, and `targets` the buffers of the last pass. `is_apart`: reads that nobody
    waits for may still write into them. `wanted` is the last point that the disk was read for.
    """

    def __init__(
        self,
        walk: Walk,
        *,
        pool: Executor | None = None,
        answers: Callable[[Future[Any]], bool] = came,
        together: int = READ_TOGETHER,
        in_flight: int = READ_AHEAD,
    ) -> None:
        self.walk = walk
        self.point: RestorePoint | None = None
        self.wanted: RestorePoint | None = None
        self.plan: Plan | None = None
        self.targets: HostTargets | DeviceTargets | None = None
        self.arrived: dict[PageId, Page] = {}
        self.read: set[PageId] = set()
        self.passes = 0
        self.is_apart = self.is_late = self.closed = False
        self._is_ahead = pool is not None
        self._pool = pool or walk.source.read_pool
        self._answers = answers
        self._together = together
        self._in_flight = in_flight
        self._held: dict[PageId, Page] = {}

    def make_plan(self, passes: int = DISK_PASSES) -> bool:
        """Find and plan what can be restored below the pages that failed; reads headers. False when
        that is nothing, or has failed in as many passes."""
        while self.passes < passes:
            memory = self._memory() if self.passes >= DISK_PASSES else None
            if memory is not None:
                self.point = self._worded(self.walk.find(memory))
            else:
                self.point = self.wanted = self.point or self.walk.find()
            if not self.point.position:
                return False
            self._held = memory.pages if memory is not None else self._hold(self.point)
            try:
                if memory is None or not self._is_planned(self.point):
                    self.plan = plan_for(self.walk, self.point, self._held, self._meta())
                return True
            except PageFailed as failed:
                self.learn(failed)
        return False

    def learn(self, failed: PageFailed) -> None:
        """Plan the next pass without a page that failed; in memory, if the disk hangs."""
        assert self.point is not None
        hangs = isinstance(failed.cause, PageUnanswered)
        self.is_apart |= hangs
        self.walk.learn(failed, self.point, self._held, None if hangs else self._meta())
        self.passes = DISK_PASSES if hangs and self.passes < DISK_PASSES else self.passes + 1
        self.point = None

    def nbytes(self) -> int:
        """Return the memory that it takes."""
        assert self.point is not None
        uses = self.point.all_uses
        if self.plan is None or not on_host():
            return sum(use.info.nbytes for use in uses)
        staged = (use.info.nbytes for use in uses if use.page.group != PAGED.name)
        return self.plan.nbytes + sum(staged)

    def hold_all(self) -> bool:
        """Take hold of all pages of the point, so that none is evicted; False, and nothing held, if
        one is not in memory."""
        assert self.point is not None
        held = self._hold(self.point)
        found = all(use.page in held for use in self.point.all_uses)
        self.arrived = held if found else {}
        return found

    def take_over(self, other: "Reading", *, late: bool) -> None:
        """Restore what another reading has brought, and what else is in memory; it has ended, or
        comes too `late`: then it was closed, and may still write into its own buffers."""
        self.passes, self.is_late, self.is_apart = DISK_PASSES, late, late
        # A plan names the caches that it fills, which are those of its walk.
        self.plan = other.plan if other.walk is self.walk else None
        self.wanted, self.targets = other.wanted, other.targets
        self.arrived, self.read = dict(other.arrived), set(other.read)
        self.walk.models = dict(other.walk.models)

    def close(self) -> None:
        """Read no more, and let go of what came; any thread, any number of times."""
        self.closed = True
        self.targets, self.arrived = None, {}

    def bring(self) -> None:
        """Bring the pages of the plan to where they belong. Raises PageFailed, for the first page
        that failed, after every read has ended: nothing writes into the targets later. But what is
        given up (PageUnanswered) may."""
        plan, source = self.plan, self.walk.source
        assert plan is not None
        assert self.point is not None
        held = self._hold(self.point) if self._is_ahead else self._held
        targets = self._begin_targets(plan, held)
        filled = {} if targets is None else targets.filled
        left = [read for read in plan.reads if read.use.page not in filled]
        here = [read for read in left if read.use.page in held]
        staged = {read.use.page: held[read.use.page] for read in here if self._is_staged(read)}
        here = [read for read in here if read.use.page not in staged]
        self.arrived.update(staged)
        if isinstance(targets, HostTargets):
            fill_from(source, targets, here, held)
        elif targets is not None:
            targets.take_all(here, held)
        missing = [read for read in left if read.use.page not in held]
        pages = [read.use.page for read in missing]
        source.withdraw(pages)
        with contextlib.closing(source.expect(pages)):
            self._read_all(missing, targets)

    def arrays(self) -> dict[str, Array]:
        """Return the filled targets by tensor name, evaluated and owned; raises PageFailed."""
        try:
            self.bring()
            assert self.targets is not None
            return self.targets.arrays()
        finally:
            if isinstance(self.targets, DeviceTargets):
                # What was read and not yet brought to its place is not read again.
                self.arrived.update(self.targets.aside())

    def _begin_targets(
        self, plan: Plan, held: Mapping[PageId, Page]
    ) -> HostTargets | DeviceTargets | None:
        """Return the buffers to fill, with what earlier ones have in common with them; None where
        pages are staged."""
        before = self.targets
        if before is not None and before.plan is plan and not self.is_apart:
            return before
        fresh = not (held or plan.encoded or isinstance(before, DeviceTargets))
        straight = not has_memory_of_its_own() and (fresh or isinstance(before, HostTargets))
        if on_host() or (straight and not self._is_ahead):
            host = before if isinstance(before, HostTargets) else None
            self.targets = HostTargets(plan, before=host, apart=self.is_apart)
        elif not self._is_ahead:
            device = before if isinstance(before, DeviceTargets) else None
            self.targets = DeviceTargets(plan, before=device)
        return self.targets

    def _read_all(
        self, reads: Sequence[PageRead], targets: HostTargets | DeviceTargets | None
    ) -> None:
        """Read pages on the pool's threads, which fill the host's targets; the device's are filled
        here, in order. After a page has failed no deeper one is begun."""
        failures: list[tuple[int, BaseException]] = []
        host = targets if isinstance(targets, HostTargets) else None
        step_bytes = targets.batch_bytes // 4 if isinstance(targets, DeviceTargets) else 0

        def bring(first: int, batch: Sequence[PageRead], pages: dict[PageId, Page]) -> None:
            index = first
            try:
                for index, read in enumerate(batch, first):
                    if self.closed or (failures and index > _first(failures)[0]):
                        break
                    page = fetch(self.walk.source, read, None if self._is_staged(read) else host)
                    self.read.add(read.use.page)
                    if page is not None:
                        pages[read.use.page] = page
            except BaseException as error:
                failures.append((index, error))
            try:
                self._place(batch, pages, host)
            except BaseException as error:
                failures.append((first, error))

        left = deque(batches(reads, self._together, READ_BYTES))
        under_way: deque[tuple[Future[None], Sequence[PageRead], dict[PageId, Page]]] = deque()
        begun = nbytes = 0
        came: list[PageRead] = []
        arrived: dict[PageId, Page] = {}
        while under_way or (left and not failures):
            while left and not failures and len(under_way) * len(left[0]) < self._in_flight:
                task = left.popleft(), dict[PageId, Page]()
                under_way.append((self._pool.submit(bring, begun, *task), *task))
                begun += len(task[0])
            future, batch, pages = under_way.popleft()
            try:
                if self._answers(future):
                    future.result()
                else:
                    failures.append((-1, self._given_up(batch, pages)))
                    under_way.clear()
                    pages = dict(pages)
                    self.arrived.update(pages)
                if isinstance(targets, DeviceTargets):
                    came += [read for read in batch if read.use.page in pages]
                    arrived |= pages
                    nbytes += sum(page.meta.nbytes for page in pages.values())
                    if nbytes >= step_bytes or not under_way:
                        targets.take_all(came, arrived)
                        came, arrived, nbytes = [], {}, 0
            except Exception as error:
                failures.append((0, error))
            except BaseException as error:
                # An interrupt: nobody waits for the others, whose memory the views keep alive.
                failures.append((-1, error))
                raise
        if failures:
            # What may still be written counts more than what failed.
            raise _first(failures)[1]

    def _place(
        self,
        batch: Sequence[PageRead],
        pages: Mapping[PageId, Page],
        targets: HostTargets | None,
    ) -> None:
        """Stage pages that were read, or copy and decode them into the host's targets."""
        read = [one for one in batch if one.use.page in pages]
        staged = [one.use.page for one in read if self._is_staged(one)]
        self.arrived.update((page, pages[page]) for page in staged)
        if targets is not None:
            targets.take_all([one for one in read if one.use.page not in staged], pages)

    def _is_staged(self, read: PageRead) -> bool:
        """True for a page that waits for the model's thread: on a GPU each, on the host those of
        windows and states, which another restore point may want in another order."""
        return self._is_ahead and (self.targets is None or read.use.page.group != PAGED.name)

    def _given_up(self, batch: Sequence[PageRead], pages: Mapping[PageId, Page]) -> Exception:
        done = pages.keys() | (set() if self.targets is None else self.targets.filled.keys())
        left = [read.use.page for read in batch if read.use.page not in done]
        page = (left or [batch[-1].use.page])[0]
        return Closed() if self.closed else PageFailed(page, self.walk.source.unanswered(page))

    def _meta(self) -> Callable[[PageId], PageMeta] | None:
        """Return what reads a header; None when the disk is not to be waited for."""
        return self._read_meta if self.passes < DISK_PASSES else None

    def _read_meta(self, page: PageId) -> PageMeta:
        read = self._pool.submit(self.walk.source.meta, page)
        if not self._answers(read):
            raise Closed if self.closed else self.walk.source.unanswered(page)
        return read.result()

    def _memory(self) -> InMemory:
        filled = {} if self.targets is None else self.targets.filled
        return InMemory(self.walk.source, self.arrived, filled)

    def _hold(self, point: RestorePoint) -> dict[PageId, Page]:
        return held_pages(self.walk.source, point, self.arrived)

    def _is_planned(self, point: RestorePoint) -> bool:
        """True when the plan that was read for restores just this point."""
        if self.plan is None or self.plan.position != point.position:
            return False
        return {use.page for use in point.all_uses} == {read.use.page for read in self.plan.reads}

    def _worded(self, point: RestorePoint) -> RestorePoint:
        """Return a point with what the disk's look-up said of what lies beyond: a look-up in memory
        knows less."""
        wanted = self.wanted
        if self.is_late and wanted is not None and point.position < wanted.position:
            return replace(point, reason=reasons.DEADLINE)
        if self.is_late or wanted is None or point.position != wanted.position:
            return point
        return replace(wanted, uses=point.uses)


def _first(failures: Sequence[tuple[int, BaseException]]) -> tuple[int, BaseException]:
    return min(failures, key=itemgetter(0))


def restore(reading: Reading) -> Restored:
    """Rebuild the fresh caches of a walk as far as possible and return how far that was.

    Evaluates MLX, reads the disk unless the reading is finished, and marks what it used as used, at
    the walk's stamp of the store's clock. Never raises for what a disk or a page does: the prefix
    before such a page is restored, after a bounded number of reads, and the point's reason says
    why. The caches are untouched on a miss. Counts no miss: the reason is the caller's to count.
    """
    walk = reading.walk
    while reading.make_plan(DISK_PASSES + MEMORY_PASSES):
        try:
            arrays = reading.arrays()
        except PageFailed as failed:
            reading.learn(failed)
            continue
        assert reading.point is not None
        assert reading.plan is not None
        return rebuild(walk, reading.point, reading.plan, arrays, reading.read)
    wanted = reading.wanted or RestorePoint(0, {}, None, 0)
    nothing = replace(wanted, position=0, uses={}, reason=walk.failure)
    return Restored(walk.prompt_cache, reading.point or nothing)


def fetch(source: PageSource, read: PageRead, targets: HostTargets | None = None) -> Page | None:
    """Read one page and return it, or None when its bytes went straight into `targets`.

    Blocks on the disk. The page goes to the hot tier where memory is free; without `targets` it
    is a payload of its own in any case. Joins a prefetch that is reading it. Raises PageFailed.
    """
    page = read.use.page
    try:
        coming = source.being_read(page)
        joined = source.held(page) if coming is None else result_along(coming)
        if joined is not None and joined.meta.held == read.use.info.held:
            return joined
        return _read(source, read, targets)
    except PageError as error:
        raise PageFailed(page, error) from error


def _read(source: PageSource, read: PageRead, targets: HostTargets | None) -> Page | None:
    room = Reservation()
    try:
        with source.reading(read.use.page) as reader:
            meta = reader.meta
            if meta.held != read.use.info.held:
                # Sound, and no misfit: a fuller one, which covers other tokens, took its place.
                raise PageUnreadable("the page was replaced since it was looked up")
            direct = is_direct(read, meta)
            room = source.reserve(meta.nbytes, read.use.page)
            if not room and targets is not None and direct:
                segments = targets.segments(read)
                if segments is not None:
                    reader.read_into(segments)
                    targets.note(read)
                    return None
            # What is to be decoded is MLX's to read too.
            lasting = bool(room) or targets is None or not direct
            payload, view = _memory(meta.nbytes, lasting=lasting)
            reader.read_into([view])
        page = Page(meta, on_device(payload) if lasting else payload)
        if room:
            source.put(page, room)
        return page
    finally:
        room.release()


def _memory(nbytes: int, *, lasting: bool) -> tuple[Buffer, HostView]:
    """Return memory for a payload and a view to fill it by: MLX's own if it is to stay."""
    if not lasting:
        payload = np.empty(nbytes, dtype=np.uint8)
        return payload, payload
    array = blank_bytes(nbytes) if on_host() else allocate_payload(nbytes)
    return array, writable_view(array)


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
