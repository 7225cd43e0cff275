"""Shares of a directory's budget at work: which namespaces count together, up to how much."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.catalog import read_namespace
from omlx_cache_storage.cold.pools import Pool, needs_documents, pools_of
from omlx_cache_storage.keys import BlockKey


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
