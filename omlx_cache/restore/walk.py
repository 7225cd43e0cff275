"""The state of a restore: the prefix that it can still reach, its plan, and the page to blame when
sound pages do not fit together."""

import logging
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from omlx_cache.adapters.base import PAGED, GroupSpec
from omlx_cache.pages.layout import (
    Layout,
    layout_of,
)
from omlx_cache.restore.gate import RestoreGate
from omlx_cache.restore.lookup import (
    Collected,
    Pages,
    RestorePoint,
    find_restore_point,
)
from omlx_cache.restore.plan import MetaOf, PageFailed, misfits
from omlx_cache_storage.errors import PageGone
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId, PageMeta
from omlx_cache_storage.prefetch import ReadingTiers
from omlx_cache_storage.tiers import Tier

_log = logging.getLogger(__name__)

KNOWN_BOUNDARIES = 65_536
SHARE = 8
"""Shallower points may take this part of a chain's bytes."""
LARGE = 5
"""A chain that takes this part of a tier or more has one for each such part, whatever they take."""
MOST = 24
"""And never has more than these."""


class Boundaries:
    """The latest boundaries that commits passed, for layouts without a paged group, whose pages do
    not tell. One thread uses it."""

    def __init__(self) -> None:
        self._known: OrderedDict[BlockKey, None] = OrderedDict()

    def of(self, chain: KeyChain) -> frozenset[int]:
        if not self._known:
            return frozenset()
        ends = range(chain.block_size, len(chain) + 1, chain.block_size)
        return frozenset(end for end in ends if chain.key(end) in self._known)

    def remember(self, chain: KeyChain, position: int) -> None:
        for end in range(chain.block_size, position + 1, chain.block_size):
            self._known[chain.key(end)] = None
            self._known.move_to_end(chain.key(end))
        while len(self._known) > KNOWN_BOUNDARIES:
            self._known.popitem(last=False)

    def clear(self) -> None:
        self._known.clear()


@dataclass(slots=True)
class Walk:
    """Where restore points for fresh caches are looked for, until the clock's `until`, and what
    failures have taught. `prepared`: nobody has asked for it. One thread at a time uses it."""

    source: ReadingTiers
    prompt_cache: list[Any]
    chain: KeyChain
    limit: int
    capacity: int
    known: frozenset[int]
    stamp: int | None = None
    gate: RestoreGate | None = None
    prepared: bool = False
    until: float = inf
    bad: set[PageId] = field(default_factory=set)
    failure: str | None = None
    models: dict[GroupSpec, PageMeta] = field(default_factory=dict)
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        self.layout = layout_of(self.prompt_cache)

    @property
    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def find(self, memory: Pages | None = None, *, waits: bool = True) -> RestorePoint:
        """Return the longest prefix that memory can restore, or of all tiers the longest that the
        gate admits. Reads nothing. Waits for peer processes, and with `waits` for other machines,
        each a part of the time that is left, so that pages here can be read."""
        point = find_restore_point(
            self.chain,
            self.layout.groups,
            memory or self.source,
            limit=self.limit,
            tiers=self.source,
            bad=frozenset(self.bad),
            known=self.known,
            gate=self.gate if memory is None else None,
            wait=self.left / 2 if waits else 0.0,
            news_seconds=self.left / 4,
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
