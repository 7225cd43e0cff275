"""Caches whose keys and values are packed in memory: kept as they are, never a dense detour.

mlx-vlm, whose TurboQuantKVCache is one, need not be installed: the class is recognised by name, its
state by structure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from omlx_cache.adapters.base import DenseForm, Packing, Phase, UnsupportedCache, one_sequence
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache.arrays.mlxio import Array, dtype_name
from omlx_cache.codecs import AffineCodec, TurboCodec
from omlx_cache.codecs.peer import PeerLayer, PeerMismatch, read_peer, restore_into, tag_of

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


class TurboQuantKVCacheAdapter(KVCacheAdapter):
    """mlx-vlm's TurboQuantKVCache, packed norms and indices. Integer bits only; fractional bits, a
    batch or another dialect are unsupported."""

    def config(self, cache: Any) -> dict[str, int]:
        tag = tag_of(cache)
        return {
            "seed": tag.seed,
            "key_bits": _whole(tag.key_bits),
            "value_bits": _whole(tag.value_bits),
        }

    def arrays(self, cache: Any) -> dict[str, Array]:
        if cache.keys is None or not cache.offset:
            return {}
        layer = _read(cache)
        sides = {"keys": layer.keys, "values": layer.values}
        return {f"{side}.{part}": a for side, parts in sides.items() for part, a in parts.items()}

    def phase(self, cache: Any) -> Phase:
        """Return the channels, which packed words do not tell."""
        if cache.keys is None or not cache.offset:
            return {}
        layer = _read(cache)
        return {"key_dim": layer.key_codec.dim, "value_dim": layer.value_codec.dim}

    def grows(self, cache: Any) -> int | None:
        return None

    def packing(self, cache: Any) -> Packing | None:
        tag = tag_of(cache)
        bits = {"keys": _whole(tag.key_bits), "values": _whole(tag.value_bits)}
        seeds = {"keys": tag.seed, "values": tag.seed + 1}

        def codec(side: str, dim: int) -> TurboCodec:
            return TurboCodec(dim, bits[side], seeds[side], "plain")

        if cache.keys is None or not cache.offset:
            return Packing(codec, {})
        layer = _read(cache)
        forms = {
            "keys": DenseForm("", layer.key_codec.dim),
            "values": DenseForm("", layer.value_codec.dim),
        }
        return Packing(codec, forms)

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        sides = [_parts(arrays, "keys"), _parts(arrays, "values")]
        dims = phase["key_dim"], phase["value_dim"]
        restore_into(cache, position, sides[0], sides[1], dims)


def _parts(arrays: Mapping[str, Array], side: str) -> dict[str, Array]:
    prefix = f"{side}."
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _whole(bits: float) -> int:
    if bits != int(bits):
        raise UnsupportedCache(f"TurboQuantKVCache of {bits} bits: only whole bits are kept")
    return int(bits)


def _read(cache: Any) -> PeerLayer:
    try:
        return read_peer(cache)
    except PeerMismatch as error:
        raise UnsupportedCache(f"TurboQuantKVCache: {error}") from error
