"""Recurrent state and the like: caches that are kept whole, valid at one position only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_cache.adapters.base import (
    STATE,
    Adapter,
    GroupSpec,
    Phase,
    UnsupportedCache,
    one_sequence,
)
from omlx_cache.arrays.mlxio import Array


class SnapshotAdapter(Adapter):
    def group(self, cache: Any) -> GroupSpec:
        return STATE


class ArraysCacheAdapter(SnapshotAdapter):
    """mlx-lm's ArraysCache: its arrays, and left_padding and lengths where they are set."""

    def config(self, cache: Any) -> dict[str, int]:
        return {"size": len(cache.cache)}

    def position(self, cache: Any) -> int | None:
        return None

    def arrays(self, cache: Any) -> dict[str, Array]:
        named = {str(i): array for i, array in enumerate(cache.cache) if array is not None}
        one_sequence(named)
        return named | _fields(cache, ("left_padding", "lengths"))

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        cache.cache = [arrays.get(str(i)) for i in range(len(cache.cache))]
        cache.left_padding = arrays.get("left_padding")
        cache.lengths = arrays.get("lengths")

    def blank(self, cache: Any) -> Any:
        return type(cache)(len(cache.cache))


@dataclass(frozen=True, slots=True)
class FieldsAdapter(SnapshotAdapter):
    """A private class with array attributes (or None), an `offset`, and integer parameters."""

    fields: tuple[str, ...]
    parameters: tuple[str, ...] = ()

    def config(self, cache: Any) -> dict[str, int]:
        return {name: int(getattr(cache, name)) for name in self.parameters}

    def position(self, cache: Any) -> int | None:
        return int(cache.offset)

    def arrays(self, cache: Any) -> dict[str, Array]:
        return _fields(cache, self.fields)

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        for name in self.fields:
            setattr(cache, name, arrays.get(name))
        cache.offset = position


class VlmArraysCacheAdapter(ArraysCacheAdapter):
    """mlx-vlm's ArraysCache: of mlx-lm's fields, outside a speculation."""

    def arrays(self, cache: Any) -> dict[str, Array]:
        _settled(cache)
        return super().arrays(cache)


@dataclass(frozen=True, slots=True)
class PoolingCacheAdapter(FieldsAdapter):
    """mlx-vlm's PoolingCache: pooled tokens, and a buffer with the tokens that do not fill a window
    yet. It is kept whole; how much of it counts follows from the position, since every `ratio`
    tokens fill it."""

    fields: tuple[str, ...] = ("buf_kv", "buf_gate", "pooled")
    parameters: tuple[str, ...] = ("ratio",)

    def position(self, cache: Any) -> int | None:
        pooled = 0 if cache.pooled is None else int(cache.pooled.shape[1])
        return pooled * int(cache.ratio) + int(cache.remainder)

    def arrays(self, cache: Any) -> dict[str, Array]:
        _settled(cache)
        return _fields(cache, self.fields)

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        for name in self.fields:
            setattr(cache, name, arrays.get(name))
        cache.remainder = position % int(cache.ratio)


def _fields(cache: Any, names: tuple[str, ...]) -> dict[str, Array]:
    values = {name: getattr(cache, name) for name in names}
    arrays = {name: value for name, value in values.items() if value is not None}
    one_sequence(arrays)
    return arrays


def _settled(cache: Any) -> None:
    """Refuse a cache of mlx-vlm that records a speculation: its state is not any position's."""
    if cache.is_speculating:
        raise UnsupportedCache(f"{type(cache).__name__} in the middle of a speculation")
