"""The state of a restore: the prefix that it can still reach, its plan, and the page to blame when
sound pages do not fit together."""

import contextlib
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from omlx_cache.adapters.base import PAGED, GroupSpec, Phase
from omlx_cache.adapters.kv import RotatingKVCacheAdapter
from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.codecs.policy import codec_named
from omlx_cache.pages.layout import (
    Layout,
    Leaf,
    layout_of,
    tags_of,
    wanted_specs,
)
from omlx_cache.restore.gate import RestoreGate
from omlx_cache.restore.lookup import (
    Collected,
    Pages,
    PageUse,
    RestorePoint,
    collect,
    find_restore_point,
)
from omlx_cache.restore.plan import PageFailed, Plan, make_plan
from omlx_cache_storage.errors import ForeignPage, PageError, PageGone
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId, PageMeta
from omlx_cache_storage.prefetch import ReadingTiers
from omlx_cache_storage.tiers import Tier

_log = logging.getLogger(__name__)

KNOWN_BOUNDARIES = 65_536
VOTERS = 5
"""Pages of a group that are compared to find the odd one; headers of cold ones are read."""
SHARE = 8
"""Shallower points may take this part of a chain's bytes."""
LARGE = 5
"""A chain that takes this part of a tier or more has one for each such part, whatever they take."""
MOST = 24
"""And never has more than these."""

MetaOf = Callable[[PageId], PageMeta]
"""Returns a page's header, from memory if it is there; raises PageFailed."""
Form = frozenset[tuple[str, str, tuple[int, ...]]]
"""The form of a group's page, token counts left out: names, dtypes and shapes."""


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
        return point if self.failure is None else replace(point, reason=self.failure)

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
            odd = _misfits(failed.page, point, self.layout.leaves, meta_of)
            for page in odd:
                self.source.forget(page)
            blamed = odd or blamed
        self.bad |= blamed
        # The longest prefix that needs nothing of them.
        uses = [use.info for use in point.all_uses if use.page in blamed]
        self.limit = min([self.limit, *(use.position - (use.held or 1) for use in uses)])

    def plan(self, point: RestorePoint, meta_of: MetaOf) -> Plan:
        """Return the plan to restore a point; reads a header for each group that is not in memory.
        Raises PageFailed."""
        phases: dict[str, Phase] = {}
        for group, uses in point.uses.items():
            use, known = uses[-1], None
            if group == PAGED:
                # A page in memory, or the first that a failing disk would not give.
                use = next((u for u in uses if u.info.in_memory), uses[0])
                known = self.models.get(group)
            if known is None or known.id in self.bad:
                known = self.models[group] = meta_of(use.page)
            if group.kind != "window" or use.info.position == point.position:
                phases |= _phases(known)
            elif use.info.position == point.position + 1:
                # A ring has an index only after an update by the one token that is not restored.
                told = _phases(known)
                phases |= {
                    leaf.path: {"index": told[leaf.path].get("index", 0) - 1}
                    for leaf in self.layout.groups[group]
                    if leaf.path in told and isinstance(leaf.adapter, RotatingKVCacheAdapter)
                }
        return make_plan(self.layout.groups, point, self.models, phases, self.capacity)


def _phases(meta: PageMeta) -> dict[str, Phase]:
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


def _form_of(meta: PageMeta, members: Sequence[Leaf]) -> Form | None:
    try:
        specs = [s for _leaf, fields, _ in wanted_specs(members, meta) for s in fields.values()]
    except ForeignPage:
        return None
    # A tensor's shape, without how many tokens it has.
    after = TOKEN_AXIS + bool(meta.held)
    return frozenset((s.name, s.dtype, s.shape[:TOKEN_AXIS] + s.shape[after:]) for s in specs)


def _misfits(
    failed: PageId, point: RestorePoint, leaves: Sequence[Leaf], meta_of: MetaOf
) -> set[PageId]:
    """Return the pages to forget after pages did not join: those unlike most of their group.
    Without a majority all compared ones: a commit writes right ones again. A page that only this
    build cannot decode is never to blame. Reads a few headers, raises nothing."""
    members = [leaf for leaf in leaves if leaf.group.name == failed.group]
    others = [u for u in point.all_uses if u.page != failed and u.page.group == failed.group]
    others.sort(key=lambda use: not use.info.in_memory)
    forms: dict[PageId, Form | None] = {}
    for page in [failed, *(use.page for use in others[: VOTERS - 1])]:
        with contextlib.suppress(PageFailed):
            meta = meta_of(page)
            if _is_decodable(meta):
                forms[page] = _form_of(meta, members)
    votes = Counter(form for form in forms.values() if form is not None)
    agreed = next((form for form, n in votes.items() if 2 * n > votes.total()), None)
    blamed = {page for page, form in forms.items() if form is None or form != agreed}
    if not blamed and failed in forms:
        # It looks like the others and still could not be joined.
        blamed = {failed}
    return blamed


def _is_decodable(meta: PageMeta) -> bool:
    try:
        for tag in tags_of(meta).values():
            codec_named(tag.codec)
    except (PageError, ValueError, KeyError):
        return False
    return True


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
    found = collect(chain, groups, tiers[0], limit=limit)
    ascending = list(found.positions())[::-1]
    if not ascending:
        return []
    kept = dict.fromkeys(_pages(found, ascending[-1]))
    limit_bytes = min(tier.limit_bytes for tier in tiers)
    for position in _spaced(ascending, _count(found, ascending[-1], limit_bytes)):
        kept.update(dict.fromkeys(_pages(found, position)))
    return [use.page for use in kept]


def _pages(found: Collected, position: int) -> list[PageUse]:
    return [use for uses in found.uses(position).values() for use in uses]


def _count(found: Collected, position: int, limit_bytes: int) -> int:
    nbytes = {g: sum(u.info.nbytes for u in uses) for g, uses in found.uses(position).items()}
    whole = sum(nbytes.values())
    each = sum(size for group, size in nbytes.items() if group.kind != "paged")
    return min(MOST, max(whole // SHARE // max(1, each), LARGE * whole // max(1, limit_bytes)))


def _spaced(ascending: Sequence[int], count: int) -> set[int]:
    ideals = (ascending[-1] * part // (count + 1) for part in range(1, count + 1))
    return {min(ascending, key=lambda position: abs(position - ideal)) for ideal in ideals}
