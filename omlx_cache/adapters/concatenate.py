"""ConcatenateKVCache: every token's keys and values, buffers always tight."""

from typing import Any

from omlx_cache.adapters.base import Ranges, TokenRange, UnsupportedCache
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array


class ConcatenateKVCacheAdapter(KVCacheAdapter):
    """A KVCache without slack: what it was trimmed by stays in its buffer."""

    def arrays(self, cache: Any) -> dict[str, Array]:
        arrays = super().arrays(cache)
        if arrays and arrays["keys"].shape[TOKEN_AXIS] != cache.offset:
            raise UnsupportedCache("a trimmed ConcatenateKVCache keeps the tokens it gave up")
        return arrays

    def grows(self, cache: Any) -> int | None:
        return None

    def held(self, cache: Any) -> Ranges:
        return (TokenRange(0, int(cache.offset)),) if cache.keys is not None else ()
