"""A PrefixCache that shares its pages with mlx-lm's server."""

from typing import Any

from omlx_cache.integrations.mlx_lm.models import served
from omlx_cache.prefix import PrefixCache
from omlx_cache.store import BlockStore


def cache_of(
    model: Any, store: BlockStore, model_path: str | None, adapter_path: str | None = None
) -> PrefixCache:
    """Return a prefix cache that the server finds the pages of: `warm` writes what it reads.

    Does not keep the model alive.
    """
    return PrefixCache(model, store, **served(model, model_path, adapter_path))
