"""Adapters: one small module per class of live cache, and the registry that finds them."""

from omlx_cache.adapters.base import Adapter, GroupSpec, TokenRange, UnsupportedCache
from omlx_cache.adapters.registry import adapter_for, register

__all__ = [
    "Adapter",
    "GroupSpec",
    "TokenRange",
    "UnsupportedCache",
    "adapter_for",
    "register",
]
