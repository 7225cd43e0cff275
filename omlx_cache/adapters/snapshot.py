"""What classes of recurrent state share: no token axis, valid at one position only."""

from typing import Any

from omlx_cache.adapters.base import STATE, GroupSpec, Packing, Phase, Ranges


class SnapshotAdapter:
    """Base of adapters whose caches are kept whole; subclasses read and set the arrays."""

    def group(self, cache: Any) -> GroupSpec:
        return STATE

    def held(self, cache: Any) -> Ranges:
        return ()

    def phase(self, cache: Any) -> Phase:
        return {}

    def wanted(self, cache: Any, position: int, phase: Phase) -> Ranges:
        return ()

    def grows(self, cache: Any) -> int | None:
        return None

    def packing(self, cache: Any) -> Packing | None:
        return None
