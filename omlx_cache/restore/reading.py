"""The restore engine: pages come from the tiers to where a restore wants them, each read once: on
the host into the final buffers, on a GPU into buffers that are joined batch by batch, and staged
while the model's thread is busy. Pages for which memory has room go to the hot tier on the way."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from math import inf
from operator import itemgetter
from typing import Any

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, GroupSpec
from omlx_cache.arrays.mlxio import has_memory_of_its_own, on_host
from omlx_cache.pages.layout import layout_of
from omlx_cache.restore.device import DeviceTargets
from omlx_cache.restore.lookup import Pages, RestoreGate, RestorePoint, find_restore_point
from omlx_cache.restore.plan import (
    MetaOf,
    PageFailed,
    PageRead,
    Plan,
    batches,
    make_plan,
    misfits,
)
from omlx_cache.restore.targets import HostTargets, fetch
from omlx_cache_storage.calls import done_within
from omlx_cache_storage.errors import PageError, PageGone, PageUnanswered, PageUnreadable
from omlx_cache_storage.io_threads import came
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import Page, PageId, PageInfo, PageMeta, Tail
from omlx_cache_storage.prefetch import ReadingTiers

_log = logging.getLogger(__name__)

DISK_PASSES = 2
"""Passes that may read the disk: the first, and one below the page that failed it."""
MEMORY_PASSES = 3
"""Later passes, at most: they use only pages in memory."""
READ_AHEAD = 12
"""Pages asked for at a time: enough to keep a disk busy, few enough that encoded ones stay
small."""
READ_TOGETHER = 32
"""Small pages that one task reads, `READ_BYTES` at most: reading one is mostly Python's work, and
threads that do that together delay each other."""
READ_BYTES = 1 << 20


class Walk:
    """Where restore points for fresh caches are looked for, until the clock's `until`, and what
    failures have taught. `prepared`: nobody has asked for it. One thread at a time uses it."""

    def __init__(
        self,
        source: ReadingTiers,
        prompt_cache: list[Any],
        chain: KeyChain,
        limit: int,
        capacity: int,
        known: frozenset[int],
        stamp: int | None = None,
        gate: RestoreGate | None = None,
        prepared: bool = False,
    ) -> None:
        self.source, self.chain, self.known = source, chain, known
        self.prompt_cache, self.layout = prompt_cache, layout_of(prompt_cache)
        self.limit, self.capacity = limit, capacity
        self.stamp, self.gate, self.prepared = stamp, gate, prepared
        self.until = inf
        self.bad: set[PageId] = set()
        self.failure: str | None = None
        self.models: dict[GroupSpec, PageMeta] = {}

    @property
    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def find(self, memory: Pages | None = None, *, waits: bool = True) -> RestorePoint:
        """Return the longest prefix that memory can restore, or of all tiers the longest that the
        gate admits. Reads nothing. Waits for peer processes, and with `waits` for other machines,
        each a part of the time that is left, so that pages here can be read."""
        left = self.left
        point = find_restore_point(
            self.chain,
            self.layout.groups,
            memory or self.source,
            limit=self.limit,
            tiers=self.source,
            bad=frozenset(self.bad),
            known=self.known,
            gate=self.gate if memory is None else None,
            wait=left / 2 if waits else 0.0,
            news_seconds=left / 4,
        )
        return point if self.failure is None else point._replace(reason=self.failure)

    def learn(self, failed: PageFailed, point: RestorePoint, meta_of: MetaOf) -> None:
        """Never use a failed page again, nor the pages behind it. Forgets a sound page that does
        not fit its group, so that a commit writes a right one."""
        level = logging.DEBUG if isinstance(failed.cause, PageGone) else logging.WARNING
        _log.log(
            level,
            "page %s: %s: what follows it is computed again; `omlx-cache doctor --all` reads every "
            "page",
            *(failed.page.key.hex()[:16], failed.cause),
        )
        self.failure = failed.cause.reason
        blamed = {failed.page}
        if failed.joins:
            odd = misfits(failed.page, point, self.layout.leaves, meta_of)
            for page in odd:
                self.source.forget(page)
            blamed = odd or blamed
        self.bad |= blamed
        self.models = {g: model for g, model in self.models.items() if model.id not in self.bad}
        # The longest prefix that needs nothing of them.
        uses = [use.info for use in point.all_uses if use.page in blamed]
        self.limit = min([self.limit, *(use.position - (use.held or 1) for use in uses)])


class Closed(Exception):
    """No request wants the read any more."""


class Reading:
    """The pages that the passes of one restore have brought: nothing is read twice.

    One thread at a time uses it; `close` may come from any. `pool` reads. `arrived` has staged
    pages, `read` the ids of those from the disk, and `targets` the buffers of the last pass.
    `is_apart`: abandoned reads may still write into them. `wanted` is the last point that the disk
    was read for.
    """

    is_ahead, together, in_flight = False, READ_TOGETHER, READ_AHEAD
    """`is_ahead`: whether it may be abandoned, so that its reads fill no buffer that others get.
    Then: pages in one task, and in all."""
    answers: Callable[[Future[Any]], bool] = staticmethod(came)
    """Waits for a read; False when the disk hangs."""

    def __init__(self, walk: Walk, pool: Executor | None = None) -> None:
        self.walk = walk
        self.point: RestorePoint | None = None
        self.wanted: RestorePoint | None = None
        self.plan: Plan | None = None
        self.targets: HostTargets | DeviceTargets | None = None
        self.arrived: dict[PageId, Page] = {}
        self.read: set[PageId] = set()
        self.passes = 0
        self.is_apart = self.is_late = self.closed = False
        self._pool = pool or walk.source.read_pool
        self._held: dict[PageId, Page] = {}

    def pass_turn(self) -> None:
        """Called when the last pages are asked for: another may read beside this one."""

    def make_plan(self, passes: int = DISK_PASSES) -> Plan | None:
        """Find and plan what can be restored below the pages that failed; reads headers. None when
        that is nothing, or failed in as many passes."""
        while self.passes < passes:
            from_memory = self.passes >= DISK_PASSES
            if from_memory:
                self._held = {}
                self.point = self._worded(self.walk.find(self))
            else:
                self.point = self.wanted = self.point or self.walk.find()
                self._held = self.hold(self.point)
            if not self.point.position:
                return None
            try:
                if not (from_memory and self._is_planned(self.point)):
                    walk = self.walk
                    self.plan = make_plan(
                        walk.layout.groups, self.point, walk.capacity, walk.models, self._meta_of
                    )
                return self.plan
            except PageFailed as failed:
                self.learn(failed)
        return None

    def learn(self, failed: PageFailed) -> None:
        """Plan the next pass without a page that failed; in memory, if the disk hangs."""
        assert self.point is not None
        if isinstance(failed.cause, PageUnanswered):
            self.is_apart, self.passes = True, DISK_PASSES - 1
        if isinstance(self.targets, DeviceTargets):
            # Pages that were read and are not yet in their place are not read again.
            self.arrived.update(self.targets.aside())
        self.walk.learn(failed, self.point, self._meta_of)
        self.passes += 1
        self.point = None

    def find_all(self, pages: Sequence[PageId]) -> Sequence[PageInfo | None]:
        """Return the pages that need no disk: in their place, or in memory, which keeps them."""
        filled = {} if self.targets is None else self.targets.filled
        found: list[PageInfo | None] = []
        for page in pages:
            info = filled.get(page)
            held = None if info else self.arrived.get(page) or self.walk.source.held(page)
            if held is not None:
                self._held[page] = held
                info = PageInfo(held.meta.position, held.meta.held, held.meta.nbytes, "hot")
            found.append(info)
        return found

    def tails_of(self, parents: Sequence[BlockKey]) -> Collection[Tail]:
        return self.walk.source.tails_of(parents)

    def take_over(self, other: "Reading", *, late: bool) -> None:
        """Restore another reading's pages, and others in memory. The other has ended, or is too
        `late` and was closed: its later reads go nowhere."""
        self.passes, self.is_late = DISK_PASSES, late
        # A plan names the caches that it fills, which are its walk's.
        self.plan = other.plan if other.walk is self.walk else None
        self.wanted, self.targets = other.wanted, other.targets
        self.arrived, self.read = dict(other.arrived), set(other.read)
        self.walk.models = dict(other.walk.models)

    def close(self) -> None:
        self.closed = True
        self.targets, self.arrived = None, {}

    def bring(self) -> HostTargets | DeviceTargets | None:
        """Bring the pages of the plan to where they belong; return the targets, which have all that
        is not staged. Raises PageFailed, for the first page that failed, after every read has
        ended; only an abandoned one (PageUnanswered) may still write into the targets."""
        plan, point, targets, host = self.plan, self.point, self.targets, on_host()
        assert plan is not None
        assert point is not None
        source = self.walk.source
        held = self.hold(point) if self.is_ahead else self._held
        is_staged = self.is_ahead and not host
        if not is_staged and (targets is None or targets.plan is not plan or self.is_apart):
            straight = not (held or plan.encoded or has_memory_of_its_own())
            first = HostTargets if host or straight else DeviceTargets
            kind = first if targets is None else type(targets)
            targets = self.targets = kind(plan, before=targets, apart=self.is_apart)
        filled = {} if targets is None else targets.filled
        here, missing = list[PageRead](), dict[PageId, PageRead]()
        for read in plan.reads:
            page = read.use.page
            if page in filled:
                continue
            if page in held:
                here.append(read)
            else:
                missing[page] = read
        if isinstance(targets, DeviceTargets):
            targets.take_all(here, held)
        else:
            # On threads that no disk holds up.
            submit = source.copy_pool.submit
            copies = [submit(self._place, some, held) for some in batches(here)]
            for copy in copies:
                done_within(copy, None)
            for copy in copies:
                copy.result()
        source.prefetcher.withdraw(missing)
        self._read_all(missing.values(), targets)
        return targets

    def _read_all(
        self, reads: Iterable[PageRead], targets: HostTargets | DeviceTargets | None
    ) -> None:
        """Read pages on the pool's threads, which fill the host's targets; the device's are filled
        here, in order. After a page has failed no deeper one is begun."""
        failures: list[tuple[int, BaseException]] = []
        device = targets if isinstance(targets, DeviceTargets) else None
        # A read ahead that hangs must not keep the buffers, which others get at a deadline.
        direct = targets if isinstance(targets, HostTargets) and not self.is_ahead else None

        def bring(first: int, batch: Sequence[PageRead], pages: dict[PageId, Page]) -> None:
            index = first
            try:
                for index, read in enumerate(batch, first):
                    if self.closed or (failures and index > min(failures, key=itemgetter(0))[0]):
                        break
                    page = fetch(self.walk.source, read, direct, prepared=self.walk.prepared)
                    self.read.add(read.use.page)
                    if page is not None:
                        pages[read.use.page] = page
            except BaseException as error:
                failures.append((index, error))
            if device is None:
                self._place(batch, pages)
                # Its place has it: here it would be twice in memory until others have come.
                pages.clear()

        left = deque(batches(reads, self.together, READ_BYTES))
        under_way: deque[tuple[Future[None], Sequence[PageRead], dict[PageId, Page]]] = deque()
        begun = 0
        while under_way or (left and not failures):
            while left and not failures and len(under_way) * len(left[0]) < self.in_flight:
                task = left.popleft(), dict[PageId, Page]()
                under_way.append((self._pool.submit(bring, begun, *task), *task))
                begun += len(task[0])
            if not left:
                self.pass_turn()
            future, batch, pages = under_way.popleft()
            try:
                if self.answers(future):
                    future.result()
                else:
                    failures.append((-1, self._given_up(batch, pages)))
                    under_way.clear()
                    self.arrived.update(dict(pages))
                if device is not None:
                    device.take_all([one for one in batch if one.use.page in pages], pages)
            except Exception as error:
                failures.append((0, error))
            except BaseException as error:
                # An interrupt: the thread does not wait for the others, whose memory the views keep
                # alive.
                failures.append((-1, error))
                raise
        if failures:
            # Targets that reads may still write into count more than the failures.
            index, failed = min(failures, key=itemgetter(0))
            # A read that hangs ends there, and keeps no frames and their buffers until then.
            failures[:] = [(index, Closed())]
            raise failed

    def _place(self, reads: Sequence[PageRead], pages: Mapping[PageId, Page]) -> None:
        """Stage those `pages` that there are, or bring them into the host's targets. Ahead of the
        model's thread all are staged on a GPU, and windows and states on the host: another restore
        point may want another order."""
        targets, final = self.targets, list[PageRead]()
        for read in reads if not self.closed else ():
            page = read.use.page
            if page in pages and self.is_ahead and (targets is None or page.group != PAGED.name):
                self.arrived[page] = pages[page]
            elif page in pages:
                final.append(read)
        if final and isinstance(targets, HostTargets):
            targets.take_all(final, pages)

    def _given_up(self, batch: Sequence[PageRead], pages: Collection[PageId]) -> Exception:
        filled = {} if self.targets is None else self.targets.filled
        left = [r.use.page for r in batch if r.use.page not in pages and r.use.page not in filled]
        page = (left or [batch[-1].use.page])[0]
        return Closed() if self.closed else PageFailed(page, self.walk.source.unanswered(page))

    def _meta_of(self, page: PageId) -> PageMeta:
        if page in self._held:
            return self._held[page].meta
        try:
            if self.passes >= DISK_PASSES or self.is_apart:
                raise PageUnreadable("the disk may not be waited for")
            read = self._pool.submit(self.walk.source.meta, page)
            if not self.answers(read):
                raise Closed if self.closed else self.walk.source.unanswered(page)
            return read.result()
        except PageError as error:
            raise PageFailed(page, error) from error

    def hold(self, point: RestorePoint) -> dict[PageId, Page]:
        """Return the pages of a point that arrived or are in memory; references keep them."""
        found: dict[PageId, Page] = {}
        for use in point.all_uses:
            page = self.arrived.get(use.page) or self.walk.source.held(use.page)
            if page is not None and page.meta.held == use.info.held:
                found[use.page] = page
        return found

    def _is_planned(self, point: RestorePoint) -> bool:
        if self.plan is None or self.plan.position != point.position:
            return False
        return {use.page for use in point.all_uses} == {read.use.page for read in self.plan.reads}

    def _worded(self, point: RestorePoint) -> RestorePoint:
        """Give a point the reason of the disk's lookup: one in memory knows less."""
        wanted = self.wanted
        assert wanted is not None
        if self.is_late:
            is_short = point.position < wanted.position
            return point._replace(reason=reasons.DEADLINE) if is_short else point
        return wanted._replace(uses=point.uses) if point.position == wanted.position else point
