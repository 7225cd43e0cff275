"""oMLX with this cache: what its scheduler calls of its block-aware prefix cache."""

from omlx_cache.integrations.omlx.prefix_cache import OmlxPrefixCache, RestoredBlocks, install

__all__ = ["OmlxPrefixCache", "RestoredBlocks", "install"]
