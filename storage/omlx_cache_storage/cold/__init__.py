"""The cold tier: page files in a directory, under a budget of physical bytes."""

from omlx_cache_storage.cold.tier import ColdTier

__all__ = ["ColdTier"]
