"""What can be believed of caches that were extracted from a batch."""

import copy
from collections.abc import Sequence
from typing import Any

from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.mlx_lm_versions import is_cache


def extracted(caches: Sequence[Any]) -> list[Any]:
    """Return caches of one row of a batch as far as they are surely the row's; changes none.

    Where rows of different lengths are padded, mlx-lm's batch of windows loses count of a row's
    padding once the window has moved on: the oldest tokens of what it extracts may be padding. The
    last `max_size` are always the row's, and no attention has looked at more.
    """
    return [_extracted(cache) for cache in caches]


def _extracted(cache: Any) -> Any:
    if is_cache(cache, "CacheList"):
        other = copy.copy(cache)
        other.caches = tuple(extracted(cache.caches))
        return other
    if not is_cache(cache, "RotatingKVCache") or cache.keys is None:
        return cache
    length, most = cache.keys.shape[TOKEN_AXIS], cache.max_size
    if cache.keep or length <= most or cache._idx != length:
        return cache
    other = copy.copy(cache)
    other.keys, other.values = cache.keys[..., -most:, :], cache.values[..., -most:, :]
    other._idx = most
    return other
