"""Adapters: one for each class of live cache, and the registry that finds them.

Adapters of other packages are made from the classes below: see docs/embedding.md.
"""

from omlx_cache.adapters.base import (
    PAGED,
    STATE,
    Adapter,
    GroupSpec,
    TokenRange,
    UnsupportedCache,
)
from omlx_cache.adapters.kv import (
    KVCacheAdapter,
    QuantizedKVCacheAdapter,
    RotatingKVCacheAdapter,
)
from omlx_cache.adapters.registry import adapter_for, register
from omlx_cache.adapters.registry import register as register_adapter
from omlx_cache.adapters.state import ArraysCacheAdapter

__all__ = [
    "PAGED",
    "STATE",
    "Adapter",
    "ArraysCacheAdapter",
    "GroupSpec",
    "KVCacheAdapter",
    "QuantizedKVCacheAdapter",
    "RotatingKVCacheAdapter",
    "TokenRange",
    "UnsupportedCache",
    "adapter_for",
    "register",
    "register_adapter",
]
