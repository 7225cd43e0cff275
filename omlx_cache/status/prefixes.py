"""The tree of cached prefixes: namespaces, the roots of each, and where they branch."""

from collections.abc import Mapping

import numpy as np

from omlx_cache.status.runs import (
    Blocks,
    Numbers,
    PageColumns,
    Runs,
    found,
    hint_numbers,
    runs_of,
)
from omlx_cache_storage.keys import BlockKey


class PrefixTree:
    """The tree as it was when its pages were listed; nothing in it changes. Made in a few array
    operations: a second for a million pages, and some 100 bytes for each of its runs."""

    def __init__(self, tiers: Mapping[str, PageColumns]) -> None:
        blocks = Blocks.of(tiers)
        self._namespaces = blocks.namespaces
        self._runs = runs_of(blocks)
        self._by_parent = np.argsort(self._runs["parent"], kind="stable")

    def __len__(self) -> int:
        """The runs of all namespaces."""
        return len(self._runs)

    def has(self, key: BlockKey) -> bool:
        """True when a run ends with the block of a key."""
        return self._find(key) is not None

    def namespaces(self) -> list[tuple[BlockKey, Runs]]:
        """Return the namespaces that have pages with their runs, the one used last first."""
        each = [self._runs[self._runs["namespace"] == n] for n in range(len(self._namespaces))]
        pairs = [pair for pair in zip(self._namespaces, each, strict=True) if len(pair[1])]
        return sorted(pairs, key=lambda pair: -int(pair[1]["used_ns"].max()))

    def roots(self, namespace: BlockKey, limit: int) -> tuple[Runs, int]:
        """Return the latest runs of a namespace that begin its prefixes, and how many more."""
        if namespace not in self._namespaces:
            return self._runs[:0], 0
        of_it = self._runs["namespace"] == self._namespaces.index(namespace)
        return self._latest(np.flatnonzero(of_it & (self._runs["parent"] < 0)), limit)

    def after(self, key: BlockKey, limit: int) -> tuple[Runs, int]:
        """Return the latest runs that follow the block of a key, and how many more."""
        at = self._find(key)
        if at is None:
            return self._runs[:0], 0
        parents = self._runs["parent"][self._by_parent]
        first, last = np.searchsorted(parents, [at, at + 1])
        return self._latest(self._by_parent[first:last], limit)

    def _find(self, key: BlockKey) -> int | None:
        at = int(found(self._runs["number"], hint_numbers([key]))[0])
        return at if at >= 0 and self._runs["key"][at] == key else None

    def _latest(self, rows: Numbers, limit: int) -> tuple[Runs, int]:
        used = self._runs["used_ns"][rows]
        order = np.lexsort((-self._runs["end"][rows], -used))[:limit]
        return self._runs[rows[order]], max(0, len(rows) - limit)
