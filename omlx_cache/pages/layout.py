"""A prompt cache as the store sees it: leaves by path, in layer groups."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omlx_cache.adapters.base import Adapter, GroupSpec, UnsupportedCache
from omlx_cache.adapters.registry import adapter_for, layout_name, leaves
from omlx_cache.arrays.mlxio import Array

_ORDER = {"paged": 0, "window": 1, "state": 2}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One live cache object: `path` is its index in the list, dotted inside a CacheList."""

    path: str
    cache: Any
    adapter: Adapter
    group: GroupSpec

    def arrays(self) -> dict[str, Array]:
        return self.adapter.arrays(self.cache)

    def position(self) -> int | None:
        return self.adapter.position(self.cache)


@dataclass(frozen=True, slots=True)
class Layout:
    """The leaves of one prompt cache, and their distinct groups: paged first, then windows, then
    state. Two caches with equal `signature` can share pages."""

    leaves: tuple[Leaf, ...]
    groups: tuple[GroupSpec, ...]
    signature: str

    def of(self, group: GroupSpec) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.group == group]

    def phases(self, group: GroupSpec) -> str:
        """Return a window group's ring phases as JSON, "" when all are temporal."""
        phases = {
            leaf.path: dict(phase)
            for leaf in self.of(group)
            if (phase := leaf.adapter.phase(leaf.cache))
        }
        return json.dumps(phases, sort_keys=True, separators=(",", ":")) if phases else ""

    def position(self) -> int | None:
        """Return how many tokens the cache has seen: None when no used leaf says. Raises
        UnsupportedCache when leaves disagree."""
        seen = {leaf.position() for leaf in self.leaves if leaf.arrays()} - {None}
        if len(seen) > 1:
            raise UnsupportedCache(f"layers disagree about the position: {sorted(map(str, seen))}")
        return next(iter(seen), None)

    def is_empty(self) -> bool:
        return not any(leaf.arrays() for leaf in self.leaves)

    def is_used(self) -> bool:
        """True for a cache that was fed, and that an adapter reads."""
        try:
            return not self.is_empty()
        except UnsupportedCache:
            return False


def layout_of(prompt_cache: Sequence[Any]) -> Layout:
    """Return the layout of a prompt cache; raises UnsupportedCache."""
    found = tuple(_leaf(path, cache) for path, cache in leaves(prompt_cache))
    described = [
        [leaf.path, layout_name(leaf.cache), leaf.adapter.config(leaf.cache)] for leaf in found
    ]
    distinct = {leaf.group for leaf in found}
    groups = sorted(distinct, key=lambda g: (_ORDER[g.kind], g.window, g.keep))
    signature = json.dumps(described, separators=(",", ":"), sort_keys=True)
    return Layout(found, tuple(groups), signature)


def _leaf(path: str, cache: Any) -> Leaf:
    adapter = adapter_for(cache)
    return Leaf(path, cache, adapter, adapter.group(cache))
