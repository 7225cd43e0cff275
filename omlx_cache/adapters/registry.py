"""Which adapter reads which cache class, by the class's full name, so that nothing is imported. A
subclass may hold state that its base's adapter would not see: it needs an entry."""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from omlx_cache.adapters.base import Adapter, UnsupportedCache, class_name
from omlx_cache.adapters.kv import (
    ChunkedKVCacheAdapter,
    ConcatenateKVCacheAdapter,
    KVCacheAdapter,
    QuantizedKVCacheAdapter,
    RotatingKVCacheAdapter,
    TurboQuantKVCacheAdapter,
)
from omlx_cache.adapters.state import (
    ArraysCacheAdapter,
    FieldsAdapter,
    PoolingCacheAdapter,
    VlmArraysCacheAdapter,
)

_UPSTREAM = "mlx_lm.models.cache"
_VLM = "mlx_vlm.models.cache"

_KV_CACHES: dict[str, Adapter] = {
    "KVCache": KVCacheAdapter(),
    "ConcatenateKVCache": ConcatenateKVCacheAdapter(),
    "QuantizedKVCache": QuantizedKVCacheAdapter(),
    "RotatingKVCache": RotatingKVCacheAdapter(),
    "ChunkedKVCache": ChunkedKVCacheAdapter(),
}
_ADAPTERS: dict[str, Adapter] = {
    # mlx-vlm's classes share no pages with mlx-lm's: the two packages' models compute other bits.
    **{f"{home}.{name}": one for home in (_UPSTREAM, _VLM) for name, one in _KV_CACHES.items()},
    f"{_UPSTREAM}.ArraysCache": ArraysCacheAdapter(),
    f"{_VLM}.ArraysCache": VlmArraysCacheAdapter(),
    f"{_VLM}.PoolingCache": PoolingCacheAdapter(),
    "mlx_vlm.turboquant.TurboQuantKVCache": TurboQuantKVCacheAdapter(),
    "mlx_lm.models.deepseek_v41.LayerCache": FieldsAdapter(
        fields=("window", "compress_kv", "index_k", "pending_kv", "pending_gate"),
        parameters=("window_size",),
    ),
}
_LISTS = {f"{_UPSTREAM}.CacheList", f"{_VLM}.CacheList"}
_SLICED = {f"{_UPSTREAM}.BatchKVCache", f"{_VLM}.BatchKVCache"}
_ALIASES = {
    f"omlx_cache.kv.{module}.{name}": f"{_UPSTREAM}.{name}"
    for module, name in (
        ("kv_cache", "KVCache"),
        ("kv_cache", "QuantizedKVCache"),
        ("rotating", "RotatingKVCache"),
    )
}
_ADAPTERS |= {drop_in: _ADAPTERS[name] for drop_in, name in _ALIASES.items()}

_METHODS = sorted(name for name in vars(Adapter) if not name.startswith("_"))


def _named(cache_class: object) -> str:
    owner = cache_class if isinstance(cache_class, type) else type(cache_class)
    return f'"{owner.__module__}.{owner.__qualname__}"'


def register(name: str, adapter: Adapter, *, same_as: str | None = None) -> None:
    """Add a class: `name` is `module.QualName`. With `same_as`, a drop-in subclass shares the pages
    of the class of that name. Raises ValueError when the name is taken; TypeError for a name that
    is no text, and for an adapter that lacks a method or is a class."""
    if not isinstance(name, str):
        raise TypeError(
            f"a cache class is registered by its full name, as text: {_named(name)}, not {name!r}"
        )
    lacking = [method for method in _METHODS if not callable(getattr(adapter, method, None))]
    if isinstance(adapter, type) or lacking:
        lacks = f"lacks {', '.join(lacking)}" if lacking else "is a class: give an instance"
        raise TypeError(f"the adapter of {name} must be an omlx_cache.Adapter: {adapter!r} {lacks}")
    if name in _ADAPTERS or name in _LISTS:
        raise ValueError(f"{name} is registered already")
    _ADAPTERS[name] = adapter
    if same_as is not None:
        _ALIASES[name] = same_as


def entry_of(cache: Any) -> tuple[Adapter, str]:
    """Return the adapter of a cache's class, and the class whose pages it shares."""
    name = class_name(cache)
    if name not in _ADAPTERS:
        raise UnsupportedCache(name)
    return _ADAPTERS[name], _ALIASES.get(name, name)


def adapter_for(cache: Any) -> Adapter:
    return entry_of(cache)[0]


def children(cache: Any) -> tuple[Any, ...] | None:
    return tuple(cache.caches) if class_name(cache) in _LISTS else None


def leaves(caches: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each cache that is no list, with its path: its index, dotted inside a CacheList."""
    for index, cache in enumerate(caches):
        if class_name(cache) in _LISTS:
            yield from leaves(cache.caches, f"{prefix}{index}.")
        else:
            yield f"{prefix}{index}", cache


def _with_leaves(cache: Any, change: Callable[[Any], Any]) -> Any:
    """Return what `change` makes of a cache, or a CacheList of what it makes of its leaves."""
    inner = children(cache)
    if inner is None:
        return change(cache)
    other = copy.copy(cache)
    other.caches = tuple(_with_leaves(each, change) for each in inner)
    return other


def extracted(caches: Sequence[Any]) -> list[Any]:
    """Return caches of one row of a batch as far as they are surely the row's; changes none."""
    return [_with_leaves(cache, _own_row) for cache in caches]


def _own_row(cache: Any) -> Any:
    own_row = getattr(_ADAPTERS.get(class_name(cache)), "own_row", None)
    return cache if own_row is None else own_row(cache)


def blank_like(caches: Sequence[Any]) -> list[Any]:
    """Return new, empty caches; raises UnsupportedCache for a class whose adapter makes none."""
    return [_with_leaves(cache, _blank) for cache in caches]


def _blank(cache: Any) -> Any:
    blank = getattr(_ADAPTERS.get(class_name(cache)), "blank", None)
    if blank is None:
        raise UnsupportedCache(class_name(cache))
    return blank(cache)


def extract_row(cache: Any, slot: int) -> Any:
    """Return a row's cache as a batch's `extract` does, but of a KVCache slices instead of a copy.
    Use it before the batch grows: its buffers are copied whole while others have them too. Raises
    AttributeError for a class that has no rows."""
    return _with_leaves(cache, partial(_row, slot=slot))


def _row(cache: Any, slot: int) -> Any:
    if class_name(cache) not in _SLICED:
        return cache.extract(slot)
    row: Any = sys.modules[type(cache).__module__].KVCache()
    if cache.keys is not None:
        span = slice(int(cache.left_padding[slot].item()), int(cache._idx))
        row.keys, row.values = (
            side[slot : slot + 1, :, span] for side in (cache.keys, cache.values)
        )
        row.offset = row.keys.shape[2]
    return row


def first_tokens(cache: Any, count: int) -> Any:
    row = type(cache)()
    row.keys, row.values = (side[:, :, :count] for side in (cache.keys, cache.values))
    row.offset = count
    return row
