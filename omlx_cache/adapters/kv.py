"""The caches of keys and values: of every token, of a chunk, and of a window in a ring; dense, or
packed, whose bits go in and out without a dense detour.

An adapter of mlx-lm's own classes also has `blank`, which makes an empty cache like another, and
`own_row` where mlx-lm's batch extracts more than a row's own tokens.
"""

import copy
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_cache.adapters.base import (
    PAGED,
    Adapter,
    DenseForm,
    GroupSpec,
    Packing,
    Phase,
    Ranges,
    TokenRange,
    UnsupportedCache,
    one_sequence,
)
from omlx_cache.arrays.mlxio import NAMES, TOKEN_AXIS, Array
from omlx_cache.codecs.codec import AffineCodec, Parts
from omlx_cache.codecs.turbo import TurboCodec, packed_words
from omlx_cache.codecs.turbo_tables import Table, codebook, mixing
from omlx_cache.mlx_lm_versions import is_cache, is_old

STORED = 2
"""Part of every layout with windows. Pages of the first kind, which no namespace names any more,
may have a batch's padding among their tokens."""
_PARTS = ("packed", "scales", "biases")
_TURBO_PARTS = ("norms", "indices")


class KVCacheAdapter(Adapter):
    """mlx-lm's KVCache, a buffer with slack, and drop-in subclasses with its fields."""

    has_slack = True
    """Whether the buffer grows by steps of `step` tokens."""

    def group(self, cache: Any) -> GroupSpec:
        return PAGED

    def config(self, cache: Any) -> dict[str, int]:
        return {}

    def position(self, cache: Any) -> int | None:
        return int(cache.offset)

    def arrays(self, cache: Any) -> dict[str, Array]:
        if cache.keys is None:
            return {}
        arrays = {"keys": cache.keys, "values": cache.values}
        one_sequence(arrays)
        return arrays

    def grows(self, cache: Any) -> int | None:
        return int(cache.step) if self.has_slack else None

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        cache.keys, cache.values = arrays["keys"], arrays["values"]
        cache.offset = position

    def blank(self, cache: Any) -> Any:
        return type(cache)()


class ConcatenateKVCacheAdapter(KVCacheAdapter):
    """A ConcatenateKVCache, a KVCache without slack: trimmed tokens stay in its buffer."""

    has_slack = False

    def arrays(self, cache: Any) -> dict[str, Array]:
        arrays = super().arrays(cache)
        if arrays and arrays["keys"].shape[TOKEN_AXIS] != cache.offset:
            raise UnsupportedCache("a trimmed ConcatenateKVCache keeps the tokens it gave up")
        return arrays


class ChunkedKVCacheAdapter(KVCacheAdapter):
    """mlx-lm's ChunkedKVCache (Llama 4), and mlx-vlm's own: index 0 of the buffer is token
    `start_position`; trimmed at the front before an update."""

    def group(self, cache: Any) -> GroupSpec:
        if is_old() and is_cache(cache, "ChunkedKVCache"):
            raise UnsupportedCache("ChunkedKVCache of mlx-lm before 0.32")
        return GroupSpec("window", int(cache.chunk_size))

    def config(self, cache: Any) -> dict[str, int]:
        return {"chunk_size": int(cache.chunk_size)}

    def held(self, cache: Any) -> Ranges:
        start, stop = int(cache.start_position), int(cache.offset)
        return (TokenRange(start, stop),) if stop > start else ()

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        super().rebuild(cache, arrays, position, phase)
        cache.start_position = max(0, position - int(cache.chunk_size))

    def blank(self, cache: Any) -> Any:
        return type(cache)(cache.chunk_size)


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
        forms = {}
        if cache.keys is not None:
            for side in ("keys", "values"):
                packed, scales, _biases = getattr(cache, side)
                forms[side] = DenseForm(NAMES[scales.dtype], packed.shape[-1] * 32 // codec.bits)
        return Packing(lambda side, dim: codec, forms)

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        cache.keys = tuple(arrays[f"keys.{part}"] for part in _PARTS)
        cache.values = tuple(arrays[f"values.{part}"] for part in _PARTS)
        cache.offset = position

    def blank(self, cache: Any) -> Any:
        return type(cache)(cache.group_size, cache.bits)


class RotatingKVCacheAdapter(KVCacheAdapter):
    """mlx-lm's RotatingKVCache, and drop-in subclasses with its fields: the last `max_size` tokens
    and the first `keep`, in a ring once it is full.

    Three buffer orders occur. Before anything is lost: all tokens. After a multi-token update: the
    sinks, then the recent tokens in temporal order. After single-token updates: a ring, whose next
    slot `_idx` depends on when decoding began. So it is carried as the phase: attention sums in
    buffer order, and another order gives other last bits.
    """

    has_slack = False

    def group(self, cache: Any) -> GroupSpec:
        return GroupSpec("window", int(cache.max_size), int(cache.keep))

    def config(self, cache: Any) -> dict[str, int]:
        return {"max_size": int(cache.max_size), "keep": int(cache.keep), "stored": STORED}

    def held(self, cache: Any) -> Ranges:
        if cache.keys is None:
            return ()
        offset, index = int(cache.offset), int(cache._idx)
        length = int(cache.keys.shape[TOKEN_AXIS])
        if offset <= length:
            if index != offset and index != length:
                raise UnsupportedCache(f"RotatingKVCache with offset {offset} and index {index}")
            return PAGED.needs(offset)
        if index == length:
            return GroupSpec("window", length, int(cache.keep)).needs(offset)
        if length != cache.max_size or not cache.keep <= index < length:
            raise UnsupportedCache(f"RotatingKVCache of length {length} with index {index}")
        return _ring(offset, length, int(cache.keep), index)

    def phase(self, cache: Any) -> Phase:
        if cache.keys is None or cache.offset <= cache.keys.shape[TOKEN_AXIS]:
            return {}
        index = int(cache._idx)
        return {} if index == cache.keys.shape[TOKEN_AXIS] else {"index": index}

    def wanted(self, cache: Any, position: int, phase: Phase) -> Ranges:
        if position > cache.max_size and _is_ring(phase, cache):
            return _ring(position, int(cache.max_size), int(cache.keep), phase["index"])
        return super().wanted(cache, position, phase)

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        super().rebuild(cache, arrays, position, phase)
        cache._idx = (
            phase["index"]
            if position > cache.max_size and _is_ring(phase, cache)
            else min(position, int(cache.max_size))
        )

    def blank(self, cache: Any) -> Any:
        return type(cache)(cache.max_size, cache.keep)

    def own_row(self, cache: Any) -> Any:
        """Return a cache of one row of a batch as far as it is surely the row's; changes none.

        Where rows of different lengths are padded, mlx-lm's batch of windows loses count of a row's
        padding once the window has moved on: the oldest tokens that it extracts may be padding. The
        last `max_size` are the row's, and no attention has looked at more.
        """
        most = cache.max_size
        if cache.keys is None or cache.keep:
            return cache
        length = cache.keys.shape[TOKEN_AXIS]
        if length <= most or cache._idx != length:
            return cache
        other = copy.copy(cache)
        other.keys, other.values = cache.keys[..., -most:, :], cache.values[..., -most:, :]
        other._idx = most
        return other


def _is_ring(phase: Phase, cache: Any) -> bool:
    return "index" in phase and cache.keep <= phase["index"] < cache.max_size


def _ring(offset: int, size: int, keep: int, index: int) -> Ranges:
    newest = offset - (index - keep)
    parts = (
        TokenRange(0, keep),
        TokenRange(newest, offset),
        TokenRange(offset - (size - keep), newest),
    )
    return tuple(part for part in parts if len(part))


class TurboQuantKVCacheAdapter(KVCacheAdapter):
    """mlx-vlm's TurboQuantKVCache, packed norms and indices. Integer bits only; fractional bits, a
    batch or another dialect are unsupported.

    The class is recognised by name, its state by structure: mlx-vlm need not be installed. The
    packed state says neither the head dim nor the rotation, and one release changed the rotation
    without a trace. So the live codec's dim is read, and the live tables are compared with ours;
    what differs is refused with a reason.
    """

    has_slack = False

    def config(self, cache: Any) -> dict[str, int]:
        bits = {f"{side}_bits": _whole(getattr(cache, f"{side}_bits")) for side in ("key", "value")}
        return {"seed": int(cache.seed), **bits}

    def arrays(self, cache: Any) -> dict[str, Array]:
        sides = _sides(cache)
        return {f"{s}s.{part}": a for s, (_, parts) in sides.items() for part, a in parts.items()}

    def phase(self, cache: Any) -> Phase:
        """Return the channels, which packed words do not tell."""
        return {f"{side}_dim": codec.dim for side, (codec, _) in _sides(cache).items()}

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
            state[f"{side}s"] = tuple(arrays[f"{side}s.{field}"] for field in _TURBO_PARTS)
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
    named = isinstance(state, tuple) and getattr(state, "_fields", None) == _TURBO_PARTS
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
