"""The caches of every token's keys and values: KVCache, and those beside it."""

from collections.abc import Mapping
from typing import Any

from omlx_cache.adapters.base import (
    PAGED,
    GroupSpec,
    Packing,
    Phase,
    Ranges,
    TokenRange,
    UnsupportedCache,
    one_sequence,
)
from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array
from omlx_cache.mlx_lm_versions import is_cache, is_old


class KVCacheAdapter:
    """mlx-lm's KVCache, a buffer with slack, and drop-in subclasses with its fields."""

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


class ConcatenateKVCacheAdapter(KVCacheAdapter):
    """A ConcatenateKVCache, a KVCache without slack: what it was trimmed by stays in its buffer."""

    def arrays(self, cache: Any) -> dict[str, Array]:
        arrays = super().arrays(cache)
        if arrays and arrays["keys"].shape[TOKEN_AXIS] != cache.offset:
            raise UnsupportedCache("a trimmed ConcatenateKVCache keeps the tokens it gave up")
        return arrays

    def grows(self, cache: Any) -> int | None:
        return None

    def held(self, cache: Any) -> Ranges:
        return (TokenRange(0, int(cache.offset)),) if cache.keys is not None else ()


class ChunkedKVCacheAdapter(KVCacheAdapter):
    """mlx-lm's ChunkedKVCache (Llama 4), and mlx-vlm's own: index 0 of the buffer is token
    `start_position`; trimmed at the front before an update."""

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
