"""Pools: the pages that share a ceiling, as a directory's shares divide its namespaces."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.budget import EACH, Budget, Share, ShareKind
from omlx_cache_storage.cold.catalog import read_namespace
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


class Ceiling(NamedTuple):
    """Namespaces that may take so many bytes together."""

    namespaces: frozenset[BlockKey]
    nbytes: int


class Shares:
    """Knows the pools of the namespaces of a directory. One thread at a time; reads each
    namespace's document once, and nothing for a budget without shares."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.go_by(None)

    def go_by(self, budget: Budget | None) -> None:
        """Have the shares of another budget."""
        self._budget = budget
        self._known: dict[BlockKey, dict[Pool, int]] = {}
        self._members: dict[Pool, set[BlockKey]] = {}

    @property
    def any(self) -> bool:
        return self._budget is not None and bool(self._budget.shares)

    def learn(self, namespaces: Iterable[BlockKey]) -> None:
        """Look up which pools namespaces belong to that other processes made."""
        for namespace in namespaces if self.any else ():
            if namespace not in self._known:
                self._add(namespace, {})

    def of(self, namespace: BlockKey, document: Mapping[str, object]) -> list[Ceiling]:
        """Return the ceilings that a page of a namespace comes under."""
        if not self.any:
            return []
        if namespace not in self._known:
            self._add(namespace, document)
        pools = self._known.get(namespace, {})
        return [Ceiling(frozenset(self._members[pool]), pools[pool]) for pool in pools]

    def every(self) -> list[Ceiling]:
        """Return all ceilings that something comes under."""
        nbytes = {pool: most for pools in self._known.values() for pool, most in pools.items()}
        return [Ceiling(frozenset(self._members[pool]), most) for pool, most in nbytes.items()]

    def _add(self, namespace: BlockKey, document: Mapping[str, object]) -> None:
        assert self._budget is not None
        if not document and needs_documents(self._budget):
            document = read_namespace(self._directory, namespace)
        pools = pools_of(self._budget, namespace, document)
        if not document and needs_documents(self._budget):
            # Its document is being written: it is asked for again.
            return
        self._known[namespace] = pools
        for pool in pools:
            self._members.setdefault(pool, set()).add(namespace)
