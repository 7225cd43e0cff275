"""Caches made from the states that oMLX's scheduler extracts, as far as their classes are known.

A layer is `{"state": ..., "meta_state": ..., "class_name": ...}`: mlx-lm's `state`, and the
`meta_state` of the mlx-lm that oMLX is written for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from omlx_cache.adapters.base import UnsupportedCache

Layer = Mapping[str, Any]


class Snapshots(Protocol):
    """Layers by the number of tokens that they hold; None where they cannot be read back. oMLX's
    own object has no more than this: it cannot be iterated."""

    def __len__(self) -> int: ...
    def __contains__(self, position: int, /) -> bool: ...
    def __getitem__(self, position: int, /) -> Sequence[Layer | None] | None: ...


def caches_at(
    position: int, layers: Sequence[Layer], snapshot: Sequence[Layer | None] | None = None
) -> list[Any]:
    """Return the caches of a sequence's first `position` tokens, which share the layers' arrays: a
    snapshot's layers, and the beginning of those that it leaves out because they can be cut.

    Keys and values may be longer: beside states of a boundary oMLX hands over all that it has.
    Raises UnsupportedCache for other classes, and for what is missing and cannot be cut.
    """
    taken = layers if snapshot is None else snapshot
    filled = [*taken, *[None] * (len(layers) - len(taken))]
    return [_cache(layer, own, position) for layer, own in zip(filled, layers, strict=True)]


def _cache(layer: Layer | None, whole: Layer, position: int) -> Any:
    if layer is None or not len(layer.get("state") or ()):
        if whole["class_name"] != "KVCache":
            raise UnsupportedCache(f"a snapshot without its {whole['class_name']}")
        layer = whole
    kind = str(layer["class_name"])
    if kind not in _MAKERS or not len(layer["state"] or ()):
        raise UnsupportedCache(f"oMLX's state of {kind}")
    return _MAKERS[kind](layer, position)


def _kv(layer: Layer, position: int) -> KVCache:
    cache = KVCache()
    cache.keys, cache.values = (side[..., :position, :] for side in layer["state"][:2])
    cache.offset = cache.keys.shape[2]
    return cache


def _rotating(layer: Layer, position: int) -> RotatingKVCache:
    keep, max_size, offset, index = (int(part) for part in layer["meta_state"])
    cache = RotatingKVCache(max_size, keep)
    cache.keys, cache.values = layer["state"][:2]
    cache.offset, cache._idx = offset, index
    return cache


def _arrays(layer: Layer, position: int) -> ArraysCache:
    cache = ArraysCache(len(layer["state"]))
    cache.cache = list(layer["state"])
    return cache


_MAKERS: Mapping[str, Callable[[Layer, int], Any]] = {
    "KVCache": _kv,
    "RotatingKVCache": _rotating,
    "ArraysCache": _arrays,
}
