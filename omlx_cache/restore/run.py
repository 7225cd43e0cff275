"""From a look-up to live caches: plan, execute, and plan again without a page that failed."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from omlx_cache.adapters.base import Phase
from omlx_cache.arrays.mlxio import on_host
from omlx_cache.pages.layout import Layout
from omlx_cache.restore.executor import execute
from omlx_cache.restore.lookup import PageUse, RestorePoint, find_restore_point
from omlx_cache.restore.pages import PageFailed
from omlx_cache.restore.plan import Plan, make_plan
from omlx_cache.store import BlockStore
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageId, PageMeta

_log = logging.getLogger(__name__)


class Restored(NamedTuple):
    """What a restore did: the point, and how many of its tokens came from the cold tier."""

    point: RestorePoint
    cold_tokens: int


def restore(
    store: BlockStore,
    layout: Layout,
    chain: KeyChain,
    *,
    limit: int,
    capacity: int,
    known: frozenset[int],
    stamp: int | None = None,
) -> Restored:
    """Rebuild the fresh caches of `layout` as far as possible and return how far that was.

    Evaluates MLX, reads the disk, and marks what it used as used. Never raises for what a disk or
    a page does: such a page is dropped, counted, and the next shorter prefix is tried. The caches
    are untouched on a miss.
    """
    bad: set[PageId] = set()
    failure: str | None = None
    while True:
        point = find_restore_point(
            chain, layout.groups, store, limit=limit, bad=frozenset(bad), known=known
        )
        if not point.position:
            return Restored(_with_reason(point, failure), 0)
        try:
            hot = _hot_pages(store, point)
            plan = _plan(store, layout, point, hot, capacity)
            arrays = execute(plan, hot, store, store.read_pool, on_device=not on_host())
        except PageFailed as error:
            _log.warning("page %s: %s", error.page.key.hex()[:16], error.cause)
            store.counters.miss(error.cause.reason)
            failure = error.cause.reason
            bad.add(error.page)
            continue
        for leaf_plan in plan.leaves:
            fields = {field: arrays[name] for field, name in leaf_plan.fields.items()}
            if fields:
                leaf_plan.leaf.adapter.rebuild(
                    leaf_plan.leaf.cache, fields, point.position, leaf_plan.phase
                )
        store.touch(_root_first(point), stamp)
        return Restored(_with_reason(point, failure), _cold_tokens(point, hot))


def _root_first(point: RestorePoint) -> list[PageId]:
    uses = [use for uses in point.uses.values() for use in uses]
    return [use.page for use in sorted(uses, key=lambda use: use.info.position)]


def _with_reason(point: RestorePoint, failure: str | None) -> RestorePoint:
    if failure is None or point.reason is None:
        return point
    return RestorePoint(point.position, point.uses, failure, point.matched, point.wanted_state)


def _hot_pages(store: BlockStore, point: RestorePoint) -> dict[PageId, Page]:
    """Take hold of the hot pages, so that eviction cannot take them away meanwhile."""
    pages = {}
    for uses in point.uses.values():
        for use in uses:
            if use.info.tier == "cold":
                continue
            page = store.held(use.page)
            if page is not None and page.meta.held == use.info.held:
                pages[use.page] = page
    return pages


def _plan(
    store: BlockStore,
    layout: Layout,
    point: RestorePoint,
    hot: Mapping[PageId, Page],
    capacity: int,
) -> Plan:
    metas: dict[PageId, PageMeta] = {}
    phases: dict[str, Phase] = {}
    for group, uses in point.uses.items():
        last = uses[-1]
        metas[last.page] = _meta(store, last.page, hot)
        if group.kind != "window" or last.info.position == point.position:
            phases |= _phases(metas[last.page])
    try:
        return make_plan(layout.leaves, point, metas, phases, capacity)
    except PageError as error:
        first = next(iter(point.uses.values()))
        raise PageFailed(first[-1].page, error) from error


def _meta(store: BlockStore, page: PageId, hot: Mapping[PageId, Page]) -> PageMeta:
    if page in hot:
        return hot[page].meta
    try:
        return store.meta(page)
    except PageError as error:
        raise PageFailed(page, error) from error


def _phases(meta: PageMeta) -> dict[str, Phase]:
    return json.loads(meta.extra) if meta.extra else {}


def _cold_tokens(point: RestorePoint, hot: Mapping[PageId, Page]) -> int:
    """Count the tokens of the first group that were read from the disk."""
    uses: Sequence[PageUse] = next(iter(point.uses.values()))
    held = sum(use.info.held for use in uses) or point.position
    cold = sum(use.info.held for use in uses if use.page not in hot)
    if not any(use.info.held for use in uses):
        cold = 0 if uses[0].page in hot else held
    return min(point.position, cold)
