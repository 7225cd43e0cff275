"""ChunkedKVCache: the tokens since `start_position`, trimmed at the front before an update."""

from collections.abc import Mapping
from typing import Any

from omlx_cache.adapters.base import GroupSpec, Phase, Ranges, TokenRange, UnsupportedCache
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache.arrays.mlxio import Array
from omlx_cache.mlx_lm_versions import is_cache, is_old


class ChunkedKVCacheAdapter(KVCacheAdapter):
    """mlx-lm's ChunkedKVCache (Llama 4), and mlx-vlm's own: index 0 of the buffer is token
    `start_position`."""

    def group(self, cache: Any) -> GroupSpec:
        if is_old() and is_cache(cache, "ChunkedKVCache"):
            raise UnsupportedCache("ChunkedKVCache of mlx-lm before 0.32")
        return GroupSpec("window", int(cache.chunk_size))

    def config(self, cache: Any) -> dict[str, int]:
        return {"chunk_size": int(cache.chunk_size)}

    def held(self, cache: Any) -> Ranges:
        start, stop = int(cache.start_position), int(cache.offset)
        return (TokenRange(start, stop),) if stop > start else ()

    def wanted(self, cache: Any, position: int, phase: Phase) -> Ranges:
        start = max(0, position - int(cache.chunk_size))
        return (TokenRange(start, position),) if position else ()

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        super().rebuild(cache, arrays, position, phase)
        cache.start_position = max(0, position - int(cache.chunk_size))
