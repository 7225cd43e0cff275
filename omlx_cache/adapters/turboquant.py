"""mlx-vlm's TurboQuantKVCache, packed norms and indices, kept as they are: no dense detour.

The class is recognised by name, its state by structure: mlx-vlm need not be installed. The packed
state says neither the head dim nor the rotation, and one release changed the rotation without a
trace. So the live codec's dim is read, and the live tables are compared with ours; what differs is
refused with a reason.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_cache.adapters.base import DenseForm, Packing, Phase, UnsupportedCache
from omlx_cache.adapters.kv import KVCacheAdapter
from omlx_cache.arrays.mlxio import Array
from omlx_cache.codecs.codec import Parts
from omlx_cache.codecs.turbo import TurboCodec, packed_words
from omlx_cache.codecs.turbo_tables import Table, codebook, mixing

_FIELDS = ("norms", "indices")


class TurboQuantKVCacheAdapter(KVCacheAdapter):
    """Integer bits only; fractional bits, a batch or another dialect are unsupported."""

    def config(self, cache: Any) -> dict[str, int]:
        bits = {f"{side}_bits": _whole(getattr(cache, f"{side}_bits")) for side in ("key", "value")}
        return {"seed": int(cache.seed), **bits}

    def arrays(self, cache: Any) -> dict[str, Array]:
        sides = _sides(cache)
        return {f"{s}s.{part}": a for s, (_, parts) in sides.items() for part, a in parts.items()}

    def phase(self, cache: Any) -> Phase:
        """Return the channels, which packed words do not tell."""
        return {f"{side}_dim": codec.dim for side, (codec, _) in _sides(cache).items()}

    def grows(self, cache: Any) -> int | None:
        return None

    def packing(self, cache: Any) -> Packing | None:
        config = self.config(cache)
        sides = _sides(cache)
        forms = {f"{side}s": DenseForm("", codec.dim) for side, (codec, _) in sides.items()}

        def codec(side: str, dim: int) -> TurboCodec:
            seed = config["seed"] + (side == "values")
            return TurboCodec(dim, config[f"{side.removesuffix('s')}_bits"], seed, "plain")

        return Packing(codec, forms)

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        if not callable(getattr(cache, "prefix_cache_restore", None)):
            raise UnsupportedCache("this mlx-vlm cannot take packed state back")
        meta = (position, cache.bits, cache.seed, cache.key_bits, cache.value_bits)
        state: dict[str, tuple[Any, ...]] = {"meta_state": tuple(str(item) for item in meta)}
        for side in ("key", "value"):
            state[f"{side}s"] = tuple(arrays[f"{side}s.{field}"] for field in _FIELDS)
            state[f"{side}_codec"] = (phase[f"{side}_dim"], None, None)
        cache.prefix_cache_restore(state)


def _sides(cache: Any) -> dict[str, tuple[TurboCodec, Parts]]:
    """Return lazy views of the packed keys and values up to the offset, with the codecs that read
    them; nothing of an empty cache. Evaluates the live codecs' tables once."""
    if cache.keys is None or not cache.offset:
        return {}
    found = {}
    for place, side in enumerate(("key", "value")):
        live, bits = getattr(cache, f"{side}_codec"), getattr(cache, f"{side}_bits")
        codec = _matching_codec(live, bits, int(cache.seed) + place)
        found[side] = codec, _parts(getattr(cache, f"{side}s"), codec, int(cache.offset))
    return found


def _whole(bits: float) -> int:
    if bits != int(bits):
        raise _unsupported(f"only whole bits are kept, not {bits}")
    return int(bits)


def _matching_codec(live: Any, bits: float, seed: int) -> TurboCodec:
    if live is None:
        raise _unsupported("it has packed state and no codec")
    if getattr(live, "bits", None) != _whole(bits):
        raise _unsupported(f"its codec is not one of {bits} bits")
    try:
        codec = TurboCodec(int(live.dim), int(bits), seed, "plain")
    except ValueError as error:
        raise _unsupported(str(error)) from None
    ours = mixing(codec.dim, seed)
    rotation = live.signs if ours.ndim == 1 else live.rotation
    if not (_equal(live.codebook, codebook(codec.dim, codec.bits)) and _equal(rotation, ours)):
        raise _unsupported("its rotation or codebook is of another dialect")
    return codec


def _equal(live: object, ours: Table) -> bool:
    return isinstance(live, mx.array) and np.array_equal(np.array(live), ours)


def _parts(state: Any, codec: TurboCodec, offset: int) -> Parts:
    named = isinstance(state, tuple) and getattr(state, "_fields", None) == _FIELDS
    if not named or [getattr(part, "dtype", None) for part in state] != [mx.float16, mx.uint32]:
        raise _unsupported(f"its state is a {type(state).__name__}, not norms and indices")
    norms, indices = state
    words = packed_words(codec.dim, codec.bits)
    if indices.ndim != 4 or norms.shape != indices.shape[:3] or indices.shape[0] != 1:
        raise _unsupported(f"its arrays {norms.shape} and {indices.shape} are no one sequence's")
    if indices.shape[3] != words or indices.shape[2] < offset:
        raise _unsupported(f"its arrays {indices.shape} do not fit {codec.identity}")
    return {"norms": norms[:, :, :offset], "indices": indices[:, :, :offset]}


def _unsupported(why: str) -> UnsupportedCache:
    return UnsupportedCache(f"TurboQuantKVCache: {why}")
