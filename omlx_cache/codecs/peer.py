"""mlx-vlm's `TurboQuantKVCache`, recognised by its structure: mlx-vlm need not be installed.

Its packed state says neither the head dim nor the rotation, and one release changed the rotation
without a trace. So the dim is read from the live codec, never inferred, and the live tables are
compared with ours; what differs is refused with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from . import turbo_tables
from .bitpack import packed_words
from .codec import Parts
from .turbo import TurboCodec

_CACHE_CLASS = "TurboQuantKVCache"
_STATE_FIELDS = ("norms", "indices")


class PeerMismatch(ValueError):
    """A peer's cache that cannot be stored as it is; the text says why."""


class PeerTag(NamedTuple):
    """What mlx-vlm's cache says of itself, as its constructor takes it."""

    bits: float
    seed: int
    key_bits: float
    value_bits: float


@dataclass(frozen=True, slots=True)
class PeerLayer:
    """One layer's packed arrays up to `offset`, with the codecs that read them."""

    offset: int
    tag: PeerTag
    key_codec: TurboCodec
    value_codec: TurboCodec
    keys: Parts
    values: Parts


def is_mse_state(value: object) -> bool:
    """Say whether this is a `TurboQuantMSEState`: a NamedTuple of norms and packed indices."""
    if not isinstance(value, tuple) or getattr(value, "_fields", None) != _STATE_FIELDS:
        return False
    norms, indices = value
    return (
        isinstance(norms, mx.array)
        and isinstance(indices, mx.array)
        and (norms.dtype, indices.dtype) == (mx.float16, mx.uint32)
        and indices.ndim == 4
        and norms.shape == indices.shape[:3]
    )


def is_peer_cache(cache: object) -> bool:
    """Say whether this is mlx-vlm's single-sequence TurboQuant cache, by class and module name."""
    return any(
        base.__name__ == _CACHE_CLASS and base.__module__.partition(".")[0] == "mlx_vlm"
        for base in type(cache).__mro__
    )


def tag_of(cache: Any) -> PeerTag:
    """Return what a peer cache was made with; it may be empty."""
    return PeerTag(
        float(cache.bits), int(cache.seed), float(cache.key_bits), float(cache.value_bits)
    )


def read_peer(cache: Any) -> PeerLayer:
    """Return lazy views of a peer cache's packed arrays; evaluates its codec tables once.

    Raises PeerMismatch for an empty cache, fractional bits, another rotation or codebook, or a
    batch of more than one.
    """
    tag = tag_of(cache)
    if cache.keys is None or cache.values is None or cache.offset == 0:
        raise PeerMismatch("the cache is empty")
    key_codec = _matching_codec(cache.key_codec, tag.key_bits, tag.seed)
    value_codec = _matching_codec(cache.value_codec, tag.value_bits, tag.seed + 1)
    offset = int(cache.offset)
    return PeerLayer(
        offset,
        tag,
        key_codec,
        value_codec,
        _parts(cache.keys, key_codec, offset),
        _parts(cache.values, value_codec, offset),
    )


def rebuild_peer(cache_class: Any, layer: PeerLayer) -> Any:
    """Return a `cache_class` (mlx-vlm's) that holds exactly these packed arrays.

    Raises PeerMismatch when this release of mlx-vlm offers no way to do so.
    """
    bits, seed, key_bits, value_bits = layer.tag
    cache = cache_class(bits=bits, seed=seed, key_bits=key_bits, value_bits=value_bits)
    dims = layer.key_codec.dim, layer.value_codec.dim
    restore_into(cache, layer.offset, layer.keys, layer.values, dims)
    return cache


def restore_into(
    cache: Any, offset: int, keys: Parts, values: Parts, dims: tuple[int, int]
) -> None:
    """Make a fresh peer cache hold exactly these packed arrays of keys and values.

    Raises PeerMismatch when this release of mlx-vlm offers no way to do so.
    """
    if not callable(getattr(cache, "prefix_cache_restore", None)):
        raise PeerMismatch("this mlx-vlm cannot take packed state back")
    meta = (offset, cache.bits, cache.seed, cache.key_bits, cache.value_bits)
    cache.prefix_cache_restore(
        {
            "meta_state": tuple(str(item) for item in meta),
            "keys": tuple(keys[field] for field in _STATE_FIELDS),
            "values": tuple(values[field] for field in _STATE_FIELDS),
            "key_codec": (dims[0], None, None),
            "value_codec": (dims[1], None, None),
        }
    )


def _matching_codec(live: Any, bits: float, seed: int) -> TurboCodec:
    if live is None:
        raise PeerMismatch("the cache has packed state and no codec")
    if bits != int(bits) or getattr(live, "bits", None) != int(bits):
        raise PeerMismatch(f"only integer bits are stored packed, not {bits}")
    try:
        codec = TurboCodec(int(live.dim), int(bits), seed, "plain")
    except ValueError as error:
        raise PeerMismatch(str(error)) from None
    if turbo_tables.is_power_of_two(codec.dim):
        rotation, ours = live.signs, turbo_tables.signs(codec.dim, seed)
    else:
        rotation, ours = live.rotation, turbo_tables.rotation(codec.dim, seed)
    levels = turbo_tables.codebook(codec.dim, codec.bits)
    if not (_equal(live.codebook, levels) and _equal(rotation, ours)):
        raise PeerMismatch("its rotation or codebook is of another dialect")
    return codec


def _equal(live: object, ours: turbo_tables.Table) -> bool:
    return isinstance(live, mx.array) and np.array_equal(np.array(live), ours)


def _parts(state: Any, codec: TurboCodec, offset: int) -> Parts:
    if not is_mse_state(state):
        raise PeerMismatch(f"its state is a {type(state).__name__}, not norms and indices")
    batch, _, capacity, words = state.indices.shape
    if batch != 1:
        raise PeerMismatch(f"it holds a batch of {batch}")
    if words != packed_words(codec.dim, codec.bits) or capacity < offset:
        raise PeerMismatch(f"its arrays {state.indices.shape} do not fit {codec.identity}")
    return {field: getattr(state, field)[:, :, :offset] for field in _STATE_FIELDS}
