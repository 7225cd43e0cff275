"""Pools: the pages that share a ceiling, as a directory's shares divide its namespaces."""

from collections.abc import Mapping
from typing import NamedTuple

from omlx_cache_storage.cold.budget import EACH, Budget, Share, ShareKind
from omlx_cache_storage.documents import label
from omlx_cache_storage.keys import BlockKey


class Pool(NamedTuple):
    """All pages of one namespace, salt or model: equal for every namespace that is part of it."""

    kind: ShareKind
    name: str


def pools_of(
    budget: Budget, namespace: BlockKey, document: Mapping[str, object]
) -> dict[Pool, int]:
    """Return the pools that a namespace's pages belong to, at most one of each kind, and how many
    bytes each may take. Empty without shares."""
    pools = {}
    for pool in _every_pool(namespace, document) if budget.shares else ():
        share = share_of(budget, pool)
        if share is not None:
            pools[pool] = share.ceiling(budget.nbytes)
    return pools


def needs_documents(budget: Budget) -> bool:
    """True when only a namespace's document tells which pools it belongs to."""
    return any(share.kind != "namespace" for share in budget.shares)


def share_of(budget: Budget, pool: Pool) -> Share | None:
    """Return the share that counts for a pool: its own one, else that of each one of its kind."""
    each = budget.share(pool.kind, EACH) if pool.name else None
    return budget.share(*pool) or each


def _every_pool(namespace: BlockKey, document: Mapping[str, object]) -> list[Pool]:
    """Return a namespace's pool of each kind, as far as its document says."""
    pools = [Pool("namespace", namespace.hex())]
    salt = document.get("salt")
    if isinstance(salt, str):
        pools.append(Pool("salt", salt))
    if document:
        pools.append(Pool("model", label(document)))
    return pools
