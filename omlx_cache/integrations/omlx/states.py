"""Caches made from the states that oMLX's scheduler extracts, as far as their classes are known.

A layer is `{"state": ..., "meta_state": ..., "class_name": ...}`: mlx-lm's `state`, and the
`meta_state` of the mlx-lm that oMLX is written for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from omlx_cache.adapters.base import UnsupportedCache

Layer = Mapping[str, Any]


def caches_of(layers: Sequence[Layer]) -> list[Any]:
    """Return caches that share the layers' arrays; raises UnsupportedCache for other classes."""
    return [_cache(layer) for layer in layers]


def caches_at(
    position: int, layers: Sequence[Layer], snapshot: Sequence[Layer | None]
) -> list[Any]:
    """Return the caches of a sequence's first `position` tokens: a snapshot's layers, and of those
    that it leaves out, because they can be cut, the beginning.

    Raises UnsupportedCache for a snapshot that leaves out what cannot be cut.
    """
    filled = [*snapshot, *[None] * (len(layers) - len(snapshot))]
    return [
        _cut(layer, position) if _is_left_out(taken) else _cache(taken)
        for layer, taken in zip(layers, filled, strict=True)
    ]


def _is_left_out(layer: Layer | None) -> bool:
    return layer is None or not len(layer.get("state") or ())


def _cut(layer: Layer, position: int) -> KVCache:
    if layer["class_name"] != "KVCache":
        raise UnsupportedCache(f"a snapshot without its {layer['class_name']}")
    keys, values = layer["state"][:2]
    return _kv(keys[..., :position, :], values[..., :position, :])


def _cache(layer: Layer | None) -> Any:
    kind = "nothing" if layer is None else str(layer["class_name"])
    if layer is None or kind not in _MAKERS or not len(layer["state"] or ()):
        raise UnsupportedCache(f"oMLX's state of {kind}")
    return _MAKERS[kind](layer)


def _rotating(layer: Layer) -> RotatingKVCache:
    keep, max_size, offset, index = (int(part) for part in layer["meta_state"])
    cache = RotatingKVCache(max_size, keep)
    cache.keys, cache.values = layer["state"][:2]
    cache.offset, cache._idx = offset, index
    return cache


def _arrays(layer: Layer) -> ArraysCache:
    cache = ArraysCache(len(layer["state"]))
    cache.cache = list(layer["state"])
    return cache


def _kv(keys: Any, values: Any) -> KVCache:
    cache = KVCache()
    cache.keys, cache.values = keys, values
    cache.offset = keys.shape[2]
    return cache


_MAKERS: Mapping[str, Callable[[Layer], Any]] = {
    "KVCache": lambda layer: _kv(*layer["state"][:2]),
    "RotatingKVCache": _rotating,
    "ArraysCache": _arrays,
}
