"""The tree of cached prefixes: namespaces, the roots of each, and where they branch."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from omlx_cache.status.runs import Blocks, Numbers, Run, Runs, Sums
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.table import PageColumns


class Root(NamedTuple):
    """A namespace with pages: its prefixes are `leaves` that begin in `roots` ways."""

    namespace: BlockKey
    roots: int
    leaves: int
    blocks: int
    sums: Sums
    used_ns: int


class PrefixTree:
    """The tree as it was when its pages were listed; nothing in it changes. Made in a few array
    operations: a second for a million pages, and some 100 bytes for each of its runs."""

    def __init__(self, tiers: Mapping[str, PageColumns]) -> None:
        blocks = Blocks.of(tiers)
        runs = Runs.of(blocks)
        self._namespaces = blocks.namespaces
        self._runs = runs

    def __len__(self) -> int:
        """The runs of all namespaces."""
        return len(self._runs.key)

    def has(self, key: BlockKey) -> bool:
        """True when a run ends with the block of a key."""
        return self._runs.find(key) is not None

    def namespaces(self) -> list[Root]:
        """Return the namespaces, the one used last first."""
        runs = self._runs
        found = []
        for number, namespace in enumerate(self._namespaces):
            here = np.flatnonzero(runs.namespace == number)
            if not len(here):
                continue
            roots = here[runs.parent[here] < 0]
            found.append(
                Root(
                    namespace,
                    len(roots),
                    int(runs.leaves[roots].sum()),
                    int(runs.blocks[here].sum()),
                    Sums(*(tuple(c[:, here].sum(axis=1).tolist()) for c in runs.by_tier)),
                    int(runs.used_ns[here].max()),
                )
            )
        return sorted(found, key=lambda root: -root.used_ns)

    def roots(self, namespace: BlockKey, limit: int) -> tuple[list[Run], int]:
        """Return the latest runs of a namespace that begin its prefixes, and how many more."""
        if namespace not in self._namespaces:
            return [], 0
        runs = self._runs
        number = self._namespaces.index(namespace)
        return self._latest(np.flatnonzero((runs.namespace == number) & (runs.parent < 0)), limit)

    def after(self, key: BlockKey, limit: int) -> tuple[list[Run], int]:
        """Return the latest runs that follow the block of a key, and how many more."""
        at = self._runs.find(key)
        if at is None:
            return [], 0
        return self._latest(self._runs.children_of(at), limit)

    def _latest(self, rows: Numbers, limit: int) -> tuple[list[Run], int]:
        used = self._runs.used_ns[rows]
        order = np.lexsort((-self._runs.end[rows], -used))[:limit]
        return [self._runs.run(int(row)) for row in rows[order]], max(0, len(rows) - limit)
