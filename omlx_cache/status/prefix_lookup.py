"""How much of a prompt this process could restore, for a router that has the prompt's block keys.

Nothing is read, marked as used, or asked of another machine: the index is asked, as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from omlx_cache.control.answering import Answering
from omlx_cache.identity.namespace import Namespace
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PAGED, PageId, PageInfo

MOST_NAMESPACES = 100
MOST_KEYS = 100
"""How many block keys a look-up takes: what a request's line has room for. A longer prompt is asked
about by every n-th key."""


class TierTokens(NamedTuple):
    """How many leading tokens can be restored, and from where."""

    cached_tokens: int = 0
    hot_tokens: int = 0
    cold_tokens: int = 0
    remote_tokens: int = 0


def namespaces_document(store: Answering, model: str | None) -> Mapping[str, object]:
    """Return what a router needs to compute keys: this process's namespaces, the latest first, of
    one model or all."""
    known = [
        row
        for namespace in reversed(store.registered())
        if model is None or namespace.document.get("label") == model
        for row in [_described(namespace)]
    ]
    return {**_busy(store), "namespaces": known[:MOST_NAMESPACES]}


def prefix_document(
    store: Answering, namespace: BlockKey, keys: Sequence[BlockKey]
) -> Mapping[str, object]:
    """Return how much of a chain can be restored whose boundaries are `keys`, or some of them, the
    shortest prefix first."""
    store.refresh()
    known = _registered(store, namespace)
    groups = (PAGED,) if known is None or not known.groups else known.groups
    found = restorable(store, groups, keys)
    return {**described(store, namespace), **found._asdict()}


def described(store: Answering, namespace: BlockKey | None) -> dict[str, object]:
    """Return what every answer has: who answers, how busy it is, and what the namespace is."""
    if namespace is None:
        return _busy(store)
    known = _registered(store, namespace)
    told = {"namespace": namespace.hex()} if known is None else _described(known)
    return {**_busy(store), **told}


def restorable(store: Answering, groups: Sequence[str], keys: Sequence[BlockKey]) -> TierTokens:
    """Return how far the deepest of the boundaries reaches at which every group has a page.

    Where only some keys are given, those between count as there: the deep end leaves first.
    """
    found: list[PageInfo] = []
    asked = [store.find_all([PageId(key, group) for key in keys]) for group in groups]
    for pages in zip(*asked, strict=True):
        first = pages[0]
        if first is None and groups[0] == PAGED:
            break
        if any(page is None for page in pages):
            continue
        assert first is not None
        found.append(first)
    return by_tier(found)


def by_tier(pages: Iterable[PageInfo]) -> TierTokens:
    """Return where the tokens up to the last of pages are, each of which ends a stretch of them."""
    tiers, done = {"hot": 0, "cold": 0, "remote": 0}, 0
    for page in pages:
        # What is not written yet is in memory.
        tiers[page.tier if page.tier in tiers else "hot"] += page.position - done
        done = page.position
    return TierTokens(done, tiers["hot"], tiers["cold"], tiers["remote"])


def _registered(store: Answering, namespace: BlockKey) -> Namespace | None:
    return next((known for known in store.registered() if known.digest == namespace), None)


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


def _busy(store: Answering) -> dict[str, object]:
    """Return who answers, and how many requests it is at."""
    at_work = [record for record in store.requests.records() if record.total_seconds is None]
    known = store.identity()
    return {
        "pid": known.pid,
        "models": known.models,
        "requests": len(at_work),
        "request_tokens": sum(record.prompt_tokens for record in at_work),
    }
