"""From a name, or from a stored identity, to a codec object."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx

from . import turbo_fused
from .affine import GROUP_SIZES, AffineCodec
from .codec import Codec, DenseCodec
from .identity import HALVES, CodecIdentity, CodecName, parse_identity
from .turbo import NormMode, TurboCodec

DENSE = DenseCodec()


class Choice(NamedTuple):
    """A codec that takes the tensor; `reason` says why it is dense where another was named."""

    codec: Codec
    reason: str


class Pair(NamedTuple):
    """The codecs of one layer."""

    keys: Choice
    values: Choice


def choose_pair(
    name: CodecName, key_dim: int, value_dim: int, dtype: mx.Dtype, seed: int = 0
) -> Pair:
    """Return codecs for a layer's keys and values, dense where the named one does not fit.

    TurboQuant rotates values by `seed + 1`, as mlx-vlm does.
    """
    key_half, value_half = HALVES[name]
    keys = _choose(key_half, key_dim, dtype, seed)
    return Pair(keys, _choose(value_half, value_dim, dtype, seed + 1))


def codec_for(identity: CodecIdentity) -> Codec:
    """Return the codec with exactly this identity; raises ValueError when this build has none.

    A dialect or a table that differs is refused too: its parts would decode to other numbers.
    """
    codec = _candidate(identity)
    if codec.identity != identity:
        raise ValueError(f"codec {identity} is not {codec.identity} of this build")
    return codec


@lru_cache(64)
def codec_named(text: str) -> Codec:
    """Return the codec whose identity `text` spells; raises ValueError when this build has none."""
    return codec_for(parse_identity(text))


def warm_up(codec: Codec, dim: int, dtype: mx.Dtype) -> None:
    """Encode and decode one token now; evaluates MLX and may block for seconds the first time.

    MLX keeps what it compiled on the disk. Call this where waiting is expected, not in a request.
    """
    parts = codec.encode(mx.ones((1, 1, 1, dim), dtype))
    mx.eval(codec.decode(parts, dtype))


def is_compiled(name: CodecName) -> bool:
    """True when MLX compiles kernels for a codec at its first use here, which takes seconds."""
    return turbo_fused.available() and any(half.startswith("turbo") for half in HALVES[name])


def _choose(half: str, dim: int, dtype: mx.Dtype, seed: int) -> Choice:
    if half == "dense":
        return Choice(DENSE, "")
    bits = int(half[-1])
    try:
        codecs = _bind(half[:-1], bits, dim, seed)
    except ValueError as error:
        return Choice(DENSE, str(error))
    for codec in codecs:
        support = codec.supports(dim, dtype)
        if support:
            return Choice(codec, "")
    return Choice(DENSE, support.reason)


def _bind(family: str, bits: int, dim: int, seed: int) -> tuple[Codec, ...]:
    """Return the family's codecs for a dim, preferred first; raises ValueError when none fits."""
    if family == "affine":
        return tuple(AffineCodec(bits, group) for group in GROUP_SIZES)
    return (TurboCodec(dim, bits, seed),)


def _candidate(identity: CodecIdentity) -> Codec:
    try:
        if identity.name == "dense":
            return DENSE
        if identity.name == "affine":
            return AffineCodec(_number(identity, "bits"), _number(identity, "group"))
        if identity.name == "turbo-mse":
            # Tables of many channels take seconds to make: not for an identity that names none.
            if len(identity.tables) != 2:
                raise ValueError(f"codec {identity} does not name its two tables")
            norm: NormMode = "plain" if identity.parameter("norm") == "plain" else "corrected"
            dim, bits = _number(identity, "dim"), _number(identity, "bits")
            return TurboCodec(dim, bits, _number(identity, "seed"), norm)
    except KeyError as error:
        raise ValueError(f"codec {identity} lacks the parameter {error}") from None
    raise ValueError(f"codec {identity.name!r} is not known to this build")


def _number(identity: CodecIdentity, key: str) -> int:
    text = identity.parameter(key)
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ValueError(f"codec parameter {key}={text} is not a number")
    return int(text)
