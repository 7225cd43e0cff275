"""QuantizedKVCache: packed keys and values with their scales and biases, kept as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

from omlx_cache.adapters.base import DenseForm, Packing, Phase, one_sequence
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache.arrays.mlxio import Array, dtype_name
from omlx_cache.codecs import AffineCodec

_PARTS = ("packed", "scales", "biases")


class QuantizedKVCacheAdapter(KVCacheAdapter):
    """mlx-lm's QuantizedKVCache: the same bits go in and out, never a dense detour."""

    def config(self, cache: Any) -> dict[str, int]:
        return {"group_size": int(cache.group_size), "bits": int(cache.bits)}

    def arrays(self, cache: Any) -> dict[str, Array]:
        if cache.keys is None:
            return {}
        arrays = {
            f"{side}.{part}": array
            for side in ("keys", "values")
            for part, array in zip(_PARTS, getattr(cache, side), strict=True)
        }
        one_sequence(arrays)
        return arrays

    def packing(self, cache: Any) -> Packing | None:
        codec = AffineCodec(int(cache.bits), int(cache.group_size))
        if cache.keys is None:
            return Packing(lambda side, dim: codec, {})
        forms = {"keys": _form(codec, cache.keys), "values": _form(codec, cache.values)}
        return Packing(lambda side, dim: codec, forms)

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        cache.keys = tuple(arrays[f"keys.{part}"] for part in _PARTS)
        cache.values = tuple(arrays[f"values.{part}"] for part in _PARTS)
        cache.offset = position


def _form(codec: AffineCodec, arrays: Sequence[Array]) -> DenseForm:
    packed, scales, _biases = arrays
    return DenseForm(dtype_name(scales), packed.shape[-1] * 32 // codec.bits)
