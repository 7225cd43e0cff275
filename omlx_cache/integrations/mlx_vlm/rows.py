"""One row of a batch of mlx-vlm's, as caches of one sequence; nothing is copied or computed yet."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from omlx_cache.adapters.registry import children
from omlx_cache.integrations.mlx_vlm.form import CACHES


def row_of(batch: Sequence[Any], row: int) -> list[Any]:
    """Return views of a row: what a page is cut from them copies that much, and no whole row.

    Raises AttributeError for a class that has no rows.
    """
    module = import_module(CACHES)
    return [_row(module, cache, row) for cache in batch]


def _row(module: Any, cache: Any, row: int) -> Any:
    inner = children(cache)
    if inner is not None:
        return module.CacheList(*(_row(module, each, row) for each in inner))
    if type(cache) is not module.BatchKVCache:
        return cache.extract(row)
    alone = module.KVCache()
    if cache.keys is not None:
        start, stop = int(cache.left_padding[row].item()), int(cache._idx)
        alone.keys = cache.keys[row : row + 1, :, start:stop]
        alone.values = cache.values[row : row + 1, :, start:stop]
        alone.offset = stop - start
    return alone
