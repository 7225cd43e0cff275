"""ArraysCache: recurrent state, any number of arrays, valid at one position only."""

from collections.abc import Mapping
from typing import Any

from omlx_cache.adapters.base import Phase, one_sequence
from omlx_cache.adapters.snapshot import SnapshotAdapter
from omlx_cache.arrays.mlxio import Array


class ArraysCacheAdapter(SnapshotAdapter):
    """mlx-lm's ArraysCache: its arrays, and left_padding and lengths where they are set."""

    def config(self, cache: Any) -> dict[str, int]:
        return {"size": len(cache.cache)}

    def position(self, cache: Any) -> int | None:
        return None

    def arrays(self, cache: Any) -> dict[str, Array]:
        named = {str(i): array for i, array in enumerate(cache.cache) if array is not None}
        for field in ("left_padding", "lengths"):
            array = getattr(cache, field)
            if array is not None:
                named[field] = array
        one_sequence(named)
        return named

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        cache.cache = [arrays.get(str(i)) for i in range(len(cache.cache))]
        cache.left_padding = arrays.get("left_padding")
        cache.lengths = arrays.get("lengths")
