"""How much of a prompt this process could restore, for a router that has the prompt's block keys.

Nothing is read, marked as used, or asked of another machine: the index is asked, as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from omlx_cache.control.answering import Answering
from omlx_cache.identity.namespace import Namespace
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PAGED, PageId, PageInfo

MOST_NAMESPACES = 100
MOST_KEYS = 100
"""A request's line has room for so many. A longer prompt is asked about by every n-th key."""


def namespaces_document(store: Answering, model: str | None) -> Mapping[str, object]:
    """Return the namespaces of this process, by which a router computes keys: the latest first, of
    one model or all."""
    every = reversed(store.registered())
    known = [_described(one) for one in every if model in (None, one.document.get("label"))]
    return {**_busy(store), "namespaces": known[:MOST_NAMESPACES]}


def prefix_document(
    store: Answering, namespace: BlockKey, keys: Sequence[BlockKey]
) -> Mapping[str, object]:
    """Return how much of a chain can be restored whose boundaries are `keys`, or some of them, the
    shortest prefix first."""
    store.refresh()
    told = described(store, namespace)
    return {**told, **restorable(store, told.get("groups") or (PAGED,), keys)}


def described(store: Answering, namespace: BlockKey | None) -> dict[str, Any]:
    if namespace is None:
        return _busy(store)
    known = next((one for one in store.registered() if one.digest == namespace), None)
    told = {"namespace": namespace.hex()} if known is None else _described(known)
    return {**_busy(store), **told}


def restorable(store: Answering, groups: Sequence[str], keys: Sequence[BlockKey]) -> dict[str, int]:
    """Return how far the deepest of the boundaries reaches at which every group has a page.

    Where only some keys are given, those between count as there: the deep end leaves first.
    """
    asked = [store.find_all([PageId(key, group) for key in keys]) for group in groups]
    rows: Iterable[tuple[PageInfo | None, ...]] = zip(*asked, strict=True)
    if groups[0] == PAGED:
        rows = takewhile(lambda row: row[0] is not None, rows)
    return by_tier(row[0] for row in rows if row[0] is not None and None not in row)


def by_tier(pages: Iterable[PageInfo]) -> dict[str, int]:
    """Return how many tokens there are up to the last of pages, and in which tier; each page ends a
    stretch of them."""
    counts = dict.fromkeys(("cached_tokens", "hot_tokens", "cold_tokens", "remote_tokens"), 0)
    for page in pages:
        name = f"{page.tier}_tokens"
        # A page that is not written yet is in memory.
        counts[name if name in counts else "hot_tokens"] += page.position - counts["cached_tokens"]
        counts["cached_tokens"] = page.position
    return counts


def _described(namespace: Namespace) -> dict[str, object]:
    document = namespace.document
    return {
        "namespace": namespace.digest.hex(),
        "model": document.get("label"),
        "block_size": document.get("block_size"),
        "key_hash": document.get("key_hash"),
        "codec": document.get("codec"),
        "salted": bool(document.get("salt")),
        "groups": list(namespace.groups),
    }


def _busy(store: Answering) -> dict[str, Any]:
    at_work = store.requests.in_flight()
    known = store.identity()
    return {
        "pid": known.pid,
        "models": known.models,
        "requests": len(at_work),
        "request_tokens": sum(record.prompt_tokens for record in at_work),
    }
