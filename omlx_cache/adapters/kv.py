"""KVCache: every token's keys and values, appended to a buffer with slack."""

from collections.abc import Mapping
from typing import Any

from omlx_cache.adapters.base import (
    PAGED,
    GroupSpec,
    Packing,
    Phase,
    Ranges,
    TokenRange,
    one_sequence,
)
from omlx_cache.arrays.mlxio import Array


class KVCacheAdapter:
    """mlx-lm's KVCache, and drop-in subclasses with its fields."""

    def group(self, cache: Any) -> GroupSpec:
        return PAGED

    def config(self, cache: Any) -> dict[str, int]:
        return {}

    def position(self, cache: Any) -> int | None:
        return int(cache.offset)

    def arrays(self, cache: Any) -> dict[str, Array]:
        if cache.keys is None:
            return {}
        arrays = {"keys": cache.keys, "values": cache.values}
        one_sequence(arrays)
        return arrays

    def held(self, cache: Any) -> Ranges:
        return self.wanted(cache, int(cache.offset), {})

    def phase(self, cache: Any) -> Phase:
        return {}

    def wanted(self, cache: Any, position: int, phase: Phase) -> Ranges:
        return (TokenRange(0, position),) if position else ()

    def grows(self, cache: Any) -> int | None:
        return int(cache.step)

    def packing(self, cache: Any) -> Packing | None:
        return None

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        cache.keys, cache.values = arrays["keys"], arrays["values"]
        cache.offset = position
