"""A restore that was begun: its pages come in while other requests compute."""

import logging
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from omlx_cache import reasons
from omlx_cache.adapters.base import PAGED, GroupSpec
from omlx_cache.arrays.mlxio import Array
from omlx_cache.restore.lookup import Collected, RestorePoint
from omlx_cache.restore.plan import PageFailed, Plan
from omlx_cache.restore.queue import BackgroundReading, RestoreQueue
from omlx_cache.restore.reading import DISK_PASSES, MEMORY_PASSES, Reading, Walk
from omlx_cache_storage.calls import uninterrupted, wait_in_turns
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import COLD, REMOTE, PageId
from omlx_cache_storage.tiers import Tier

_log = logging.getLogger(__name__)

KNOWN_BOUNDARIES = 65_536
SHARE = 8
"""Shallower points may take this part of a chain's bytes."""
LARGE = 5
"""A chain that takes this part of a tier or more has one for each such part, whatever they take."""
MOST = 24
"""And never has more than these."""


class Restored(NamedTuple):
    """The result of a restore: private caches at `point.position`. Of its tokens and `nbytes` the
    disk gave `cold_tokens`, other machines `remote_tokens`, and each of these tiers `read_bytes`;
    the first `local_tokens` (None: all) were on this machine."""

    prompt_cache: list[Any]
    point: RestorePoint
    nbytes: int = 0
    cold_tokens: int = 0
    remote_tokens: int = 0
    read_bytes: Mapping[str, int] = MappingProxyType({})
    local_tokens: int | None = None


def missed(reason: str | None) -> RestorePoint:
    return RestorePoint(0, {}, reason, 0)


class PendingRestore:
    """A request's prefix, in flight into buffers of its own; made by any thread, at once.

    Nothing raises for a disk, a page or a deadline. `take` comes once, on the model's thread;
    `cancel` from any, any number of times, and a lost handle releases its memory too. Until then
    the chain of `new_walk`, which makes fresh caches each time, belongs to it.
    """

    def __init__(
        self,
        queue: RestoreQueue,
        new_walk: Callable[[int | None], Walk],
        stamp: int | None = None,
    ) -> None:
        self._queue = queue
        self._new_walk = new_walk
        self._stamp = stamp
        self._ahead: BackgroundReading | None = None
        self._finalizer: weakref.finalize[[BackgroundReading], PendingRestore] | None = None

    @uninterrupted
    def look(self, stamp: int | None = None) -> BackgroundReading:
        """Look up what can be restored now, to be used at `stamp`. Reads and holds nothing; an
        earlier start goes on."""
        self._stamp = stamp if stamp is not None else self._stamp
        return BackgroundReading(self._queue, self._new_walk(self._stamp))

    @uninterrupted
    def start(self, found: BackgroundReading | None = None) -> None:
        """Let the reading of what `look` found begin in its turn; returns at once. Without effect
        while it is started."""
        if self._ahead is None:
            self._ahead = found or self.look()
            # A finalizer may run while any lock is held, so it takes none: the queue looks here
            # later.
            self._finalizer = weakref.finalize(self, self._queue.lost.append, self._ahead)
            self._finalizer.atexit = False
            self._queue.add(self._ahead)

    @property
    def started(self) -> bool:
        return self._ahead is not None

    @property
    def ready(self) -> bool:
        """True when waiting longer makes `take` no quicker: it has what it needs, or reads on the
        spot, since it is not started, or larger than the queue may ever hold, or has no thread.
        Cheap, and takes no lock that I/O holds."""
        self._queue.settle()
        ahead = self._ahead
        return ahead is None or ahead.ended.is_set()

    @uninterrupted
    def wait(self, timeout: float | None = None) -> bool:
        """Block until `ready`, for `timeout` seconds at most."""
        ahead = self._ahead
        return ahead is None or wait_in_turns(ahead.ended.wait, timeout)

    @uninterrupted
    def cancel(self) -> None:
        """Read no more and give the memory back. A later `take` restores on the spot."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and self._finalizer is not None:
            self._finalizer.detach()
            self._queue.drop(ahead)

    @uninterrupted
    def take(self, deadline: float | None = None) -> Restored:
        """Return caches restored as far as the pages have come, after `deadline` seconds at most;
        None waits for all.

        On the model's thread; evaluates MLX. Tokens whose pages have not come must be computed
        (reason `deadline`). Of windows and states only pages in memory are used then.
        """
        try:
            ahead = self._ahead
            if ahead is None or not self._queue.take(ahead):
                self.cancel()
                walk = self._new_walk(self._stamp)
                if deadline is None:
                    return restore(Reading(walk))
                walk.until = time.monotonic() + deadline
                ahead = BackgroundReading(self._queue, walk)
                ahead.run()
            elif not wait_in_turns(ahead.ended.wait, deadline):
                ahead.closed = True
            late = ahead.closed
            reading = Reading(self._new_walk(self._stamp) if late else ahead.walk)
            reading.take_over(ahead, late=late)
            try:
                return restore(reading, ahead.seconds)
            finally:
                ahead.close()
        except Exception as error:
            _log.exception("restore failed, the request is computed in full")
            reason = f"{reasons.ERROR}:{type(error).__name__}"
            return Restored(self._new_walk(None).prompt_cache, missed(reason))
        finally:
            self.cancel()


def restore(reading: Reading, spent: float = 0.0) -> Restored:
    """Rebuild the fresh caches of a walk as far as possible, and mark its pages as used at the
    walk's stamp.

    Evaluates MLX; reads the disk unless the reading took over another's pages. Never raises for a
    disk or a page: the prefix before it is restored, after a bounded number of reads, and the
    point's reason says why. The caches are untouched on a miss. The walk's gate hears what that
    took, and `spent` seconds ahead.
    """
    began, walk = time.perf_counter(), reading.walk
    while plan := reading.make_plan(DISK_PASSES + MEMORY_PASSES):
        try:
            targets = reading.bring()
            assert targets is not None
            rebuild(plan, targets.arrays())
            break
        except PageFailed as failed:
            reading.learn(failed)
    point, wanted = reading.point, reading.wanted or missed(None)
    if point is None:
        point = wanted._replace(position=0, uses={}, reason=walk.failure)
    mark_used(walk, point)
    restored = _restored(walk.prompt_cache, point, reading.read)
    if walk.gate is not None:
        seconds = time.perf_counter() - began + spent
        walk.gate.shared.note(restored.nbytes, seconds, restored.read_bytes)
    return restored


def rebuild(plan: Plan, arrays: Mapping[str, Array]) -> None:
    for leaf, specs, phase in plan.leaves:
        fields = {field: arrays[spec.name] for field, spec in specs.items()}
        if fields:
            leaf.adapter.rebuild(leaf.cache, fields, plan.position, phase)


def _restored(prompt_cache: list[Any], point: RestorePoint, read: set[PageId]) -> Restored:
    position, first = point.position, next(iter(point.uses), PAGED).name
    total, local = 0, position
    tokens, nbytes = Counter[str](), Counter[str]()
    for page, info in point.all_uses:
        total += info.nbytes
        tier = REMOTE if info.tier == REMOTE else COLD
        if tier == REMOTE:
            local = min(local, info.position - info.held)
        if page in read:
            nbytes[tier] += info.nbytes
            if page.group == first:
                # A state stands for all tokens before it.
                tokens[tier] = min(position, tokens[tier] + (info.held or position))
    far = tokens[REMOTE]
    return Restored(prompt_cache, point, total, tokens[COLD], far, nbytes, local if far else None)


def mark_used(walk: Walk, point: RestorePoint) -> None:
    """Mark the restored pages as used, with the shallower points that stay beside them. Known
    blocks behind them, which are computed all the same, too: new pages must not evict their own
    root."""
    groups, size, touch = walk.layout.groups, walk.chain.block_size, walk.source.touch
    if point.position:
        kept = partial(fallbacks, walk.chain, groups, limit=walk.limit)
        touch(point.root_first, walk.stamp, kept)
    first, last = point.position // size, point.matched // size
    if PAGED in groups and first < last:
        keys = walk.chain.boundaries(first, last)[1:]
        touch([PageId(key, PAGED.name) for key in keys], walk.stamp)


def fallbacks(
    chain: KeyChain, groups: Collection[GroupSpec], tiers: Sequence[Tier], limit: int
) -> list[PageId]:
    """Return the pages of the deepest point up to `limit` that the first of some tiers can restore
    by itself, and of shallower ones, evenly spaced; nothing for models that trim. Pure but for
    `tiers`.

    Pages of one use share a stamp, and the deepest are evicted first. Windows and recurrent state
    serve one position, so a chain that kept them at its end alone would be worth nothing from the
    first eviction on. Memory may hold an end for which the disk has no room.
    """
    if {*groups} <= {PAGED}:
        return []
    found = Collected(chain, groups, tiers[0], limit=limit)
    ascending = sorted(found.positions())
    if not ascending:
        return []
    deepest = ascending[-1]
    nbytes = {g: sum(use.info.nbytes for use in uses) for g, uses in found.uses(deepest).items()}
    whole, limit_bytes = sum(nbytes.values()), min(tier.limit_bytes for tier in tiers)
    each = max(1, whole - nbytes.get(PAGED, 0))
    count = min(MOST, max(whole // SHARE // each, LARGE * whole // max(1, limit_bytes)))
    ideals = (deepest * part // (count + 1) for part in range(1, count + 1))
    spaced = {min(ascending, key=lambda at: abs(at - ideal)) for ideal in ideals}
    uses = [use for at in (deepest, *spaced) for some in found.uses(at).values() for use in some]
    return list(dict.fromkeys(use.page for use in uses))


class Boundaries:
    """The latest boundaries that commits passed, for layouts without a paged group, whose pages do
    not tell. One thread uses it."""

    def __init__(self) -> None:
        self._known: OrderedDict[BlockKey, None] = OrderedDict()

    def of(self, chain: KeyChain) -> frozenset[int]:
        ends = range(chain.block_size, len(chain) + 1, chain.block_size) if self._known else ()
        return frozenset(end for end in ends if chain.key(end) in self._known)

    def remember(self, chain: KeyChain, position: int) -> None:
        for end in range(chain.block_size, position + 1, chain.block_size):
            self._known[chain.key(end)] = None
            self._known.move_to_end(chain.key(end))
        while len(self._known) > KNOWN_BOUNDARIES:
            self._known.popitem(last=False)

    def clear(self) -> None:
        self._known.clear()
