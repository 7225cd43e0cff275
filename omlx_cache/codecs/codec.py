"""The protocol of every codec, and the one that MLX has itself: affine, which quantises by groups.
Its parts match the arrays of mlx-lm's `QuantizedKVCache`: `packed` (uint32), `scales`, `biases`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS

from .identity import make_identity

Parts = dict[str, mx.array]
"""Named arrays of one encoded tensor; in each of them axis 2 is the token axis."""

FLOAT_DTYPES = (mx.float16, mx.bfloat16, mx.float32)

GROUP_SIZES = (64, 32)
"""Preferred first. 128 saves 2 % more bytes and costs accuracy on outlier channels."""

_INFINITIES = {
    mx.float16: (mx.uint16, mx.int16, 0x7C00),
    mx.bfloat16: (mx.uint16, mx.int16, 0x7F80),
    mx.float32: (mx.uint32, mx.int32, 0x7F80_0000),
}
"""The bits of infinity, as an integer: a number that is larger without its sign is a NaN."""


class PartSpec(NamedTuple):
    shape: tuple[int, ...]
    dtype: mx.Dtype


class Codec(Protocol):
    """Turns a tensor (1, heads, tokens, dim) into parts and back; frozen, safe in any thread.

    Each token is encoded by itself: slicing the parts along axis 2 equals encoding the slice, and
    joining parts equals encoding the joined tensor. Nothing here evaluates MLX.
    """

    @property
    def identity(self) -> str:
        """The text that must match for `decode` to read parts that another codec object made."""

    def refusal(self, dim: int, dtype: mx.Dtype) -> str:
        """Return why vectors of `dim` elements of `dtype` cannot be encoded, "" if they can."""

    def encode(self, x: mx.array) -> Parts:
        """Return new lazy parts; raises ValueError for a tensor that is refused."""

    def encodable(self, x: mx.array, parts: Mapping[str, mx.array]) -> mx.array:
        """Return a lazy scalar bool: false when some token of `x` is outside the format's range.

        `parts` are what `encode(x)` gave: evaluate both in one synchronisation. Parts for which it
        is false must be thrown away.
        """

    def decode(self, parts: Mapping[str, mx.array], dtype: mx.Dtype) -> mx.array:
        """Return the lazy tensor (1, heads, tokens, dim); raises ValueError for foreign parts."""

    def parts_spec(self, shape: tuple[int, ...], dtype: mx.Dtype) -> dict[str, PartSpec]:
        """Return what `encode` gives for such a tensor, in the same order, computing nothing."""


def require(codec: Codec, dim: int, dtype: mx.Dtype) -> None:
    reason = codec.refusal(dim, dtype)
    if reason:
        raise ValueError(reason)


def require_parts(codec: Codec, parts: Mapping[str, mx.array], *names: str) -> None:
    """Raise ValueError unless the parts are exactly those, with one batch, heads and tokens."""
    if set(parts) != set(names):
        raise ValueError(f"{codec.identity} has parts {sorted(names)}, not {sorted(parts)}")
    leading = {tuple(parts[name].shape[: TOKEN_AXIS + 1]) for name in names}
    if len(leading) != 1:
        raise ValueError(
            f"parts of {codec.identity} disagree about batch, heads or tokens: {leading}"
        )


@dataclass(frozen=True, slots=True)
class AffineCodec:
    """`mx.quantize` in affine mode: each group keeps a scale and a bias of the input's dtype."""

    bits: int
    group_size: int

    def __post_init__(self) -> None:
        if self.bits not in (2, 3, 4, 5, 6, 8) or self.group_size not in (32, 64, 128):
            raise ValueError(f"no affine codec of {self.bits} bits in groups of {self.group_size}")

    @property
    def identity(self) -> str:
        return make_identity("affine", 1, {"bits": self.bits, "group": self.group_size})

    def refusal(self, dim: int, dtype: mx.Dtype) -> str:
        if dim == 0 or dim % self.group_size:
            return f"{dim} channels do not divide into groups of {self.group_size}"
        if dtype not in FLOAT_DTYPES:
            return f"{dtype} is not a floating-point dtype that MLX quantises"
        return ""

    def encode(self, x: mx.array) -> Parts:
        require(self, x.shape[-1], x.dtype)
        packed, scales, biases = mx.quantize(x, group_size=self.group_size, bits=self.bits)
        return {"packed": packed, "scales": scales, "biases": biases}

    def encodable(self, x: mx.array, parts: Mapping[str, mx.array]) -> mx.array:
        """False for an infinity or NaN, which leaves no trace in scales and biases, or a group
        whose range overflows the input's dtype."""
        spans = parts["scales"] * ((1 << self.bits) - 1)
        return _all_finite(x) & mx.all(mx.isfinite(spans))

    def decode(self, parts: Mapping[str, mx.array], dtype: mx.Dtype) -> mx.array:
        require_parts(self, parts, "packed", "scales", "biases")
        dense = mx.dequantize(
            parts["packed"],
            parts["scales"],
            parts["biases"],
            group_size=self.group_size,
            bits=self.bits,
        )
        return dense.astype(dtype)

    def parts_spec(self, shape: tuple[int, ...], dtype: mx.Dtype) -> dict[str, PartSpec]:
        *leading, dim = shape
        require(self, dim, dtype)
        groups = PartSpec((*leading, dim // self.group_size), dtype)
        packed = PartSpec((*leading, dim * self.bits // 32), mx.uint32)
        return {"packed": packed, "scales": groups, "biases": groups}


def _all_finite(x: mx.array) -> mx.array:
    """Return a lazy bool: two maxima and nothing in between, many times as fast as `isfinite`. As
    unsigned integers the negative values are the largest ones, as signed integers the others."""
    if not x.size:
        return mx.array(True)
    unsigned, signed, infinity = _INFINITIES[x.dtype]
    negative = infinity | 1 << 8 * x.itemsize - 1
    below = mx.max(x.view(unsigned)) < mx.array(negative, dtype=unsigned)
    return below & (mx.max(x.view(signed)) < mx.array(infinity, dtype=signed))
