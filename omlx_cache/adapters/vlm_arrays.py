"""mlx-vlm's ArraysCache and PoolingCache: state that may be in the middle of a speculation.

While one is recorded, the state is not that of any position: such a cache is refused.
"""

from collections.abc import Mapping
from typing import Any

from omlx_cache.adapters.arrays import ArraysCacheAdapter
from omlx_cache.adapters.base import Phase, UnsupportedCache, one_sequence
from omlx_cache.adapters.snapshot import SnapshotAdapter
from omlx_cache.arrays.mlxio import Array


class VlmArraysCacheAdapter(ArraysCacheAdapter):
    """An ArraysCache of mlx-lm's fields, outside a speculation."""

    def arrays(self, cache: Any) -> dict[str, Array]:
        _settled(cache)
        return super().arrays(cache)


class PoolingCacheAdapter(SnapshotAdapter):
    """Pooled tokens, and a buffer with those that do not fill a window yet.

    The buffer is kept whole; how much of it counts follows from the position, since every `ratio`
    tokens fill it.
    """

    def config(self, cache: Any) -> dict[str, int]:
        return {"ratio": int(cache.ratio)}

    def position(self, cache: Any) -> int | None:
        pooled = 0 if cache.pooled is None else int(cache.pooled.shape[1])
        return pooled * int(cache.ratio) + int(cache.remainder)

    def arrays(self, cache: Any) -> dict[str, Array]:
        _settled(cache)
        named = {name: getattr(cache, name) for name in ("buf_kv", "buf_gate", "pooled")}
        arrays = {name: array for name, array in named.items() if array is not None}
        one_sequence(arrays)
        return arrays

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        for name in ("buf_kv", "buf_gate", "pooled"):
            setattr(cache, name, arrays.get(name))
        cache.remainder = position % int(cache.ratio)


def _settled(cache: Any) -> None:
    if cache.is_speculating:
        raise UnsupportedCache(f"{type(cache).__name__} in the middle of a speculation")
