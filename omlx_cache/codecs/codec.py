"""What every codec promises, the parts it deals in, and the codec that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import mlx.core as mx

from .identity import CodecIdentity

Parts = dict[str, mx.array]
"""Named arrays of one encoded tensor; in each of them axis 2 is the token axis."""

TOKEN_AXIS = 2
FLOAT_DTYPES = (mx.float16, mx.bfloat16, mx.float32)


class PartSpec(NamedTuple):
    """Shape and dtype of one part."""

    shape: tuple[int, ...]
    dtype: mx.Dtype


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a codec takes a tensor, and why not; true when it does."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


class Codec(Protocol):
    """Turns a tensor (1, heads, tokens, dim) into parts and back; frozen, safe in any thread.

    Each token is encoded by itself: slicing the parts along axis 2 equals encoding the slice,
    and joining parts equals encoding the joined tensor. Nothing here evaluates MLX.
    """

    @property
    def identity(self) -> CodecIdentity:
        """What must match for `decode` to read parts that another codec object made."""

    def supports(self, dim: int, dtype: mx.Dtype) -> Support:
        """Say whether vectors of `dim` elements of `dtype` can be encoded."""

    def encode(self, x: mx.array) -> Parts:
        """Return new lazy parts; raises ValueError for a tensor that `supports` refuses."""

    def encodable(self, x: mx.array, parts: Mapping[str, mx.array]) -> mx.array:
        """Return a lazy scalar bool: false when some token of `x` is outside the format's range.

        `parts` are what `encode(x)` gave. Evaluate the answer together with them: that is one
        synchronisation for a whole page. Parts for which it is false must be thrown away.
        """

    def decode(self, parts: Mapping[str, mx.array], dtype: mx.Dtype) -> mx.array:
        """Return the lazy tensor (1, heads, tokens, dim); raises ValueError for foreign parts."""

    def parts_spec(self, shape: tuple[int, ...], dtype: mx.Dtype) -> dict[str, PartSpec]:
        """Return what `encode` gives for such a tensor, in the same order, computing nothing."""

    def bytes_per_token(self, heads: int, dim: int, dtype: mx.Dtype) -> int:
        """Return the bytes that one token of one such tensor takes, all parts together."""


def spec_bytes_per_token(specs: Mapping[str, PartSpec]) -> int:
    """Return the bytes per token of parts with these specs."""
    total = 0
    for shape, dtype in specs.values():
        tokens = shape[TOKEN_AXIS]
        elements = 1
        for size in shape:
            elements *= size
        total += elements * dtype.size // tokens
    return total


def require(support: Support) -> None:
    """Raise ValueError with the reason when a tensor is not supported."""
    if not support:
        raise ValueError(support.reason)


def require_parts(
    parts: Mapping[str, mx.array], names: tuple[str, ...], owner: CodecIdentity
) -> None:
    """Raise ValueError unless the parts are exactly those, with one batch, heads and tokens."""
    if set(parts) != set(names):
        raise ValueError(f"{owner} has parts {sorted(names)}, not {sorted(parts)}")
    leading = {tuple(parts[name].shape[: TOKEN_AXIS + 1]) for name in names}
    if len(leading) != 1:
        raise ValueError(f"parts of {owner} disagree about batch, heads or tokens: {leading}")


def slice_parts(parts: Mapping[str, mx.array], start: int, stop: int) -> Parts:
    """Return lazy views of tokens [start, stop); make them contiguous to free the parent."""
    return {name: array[:, :, start:stop] for name, array in parts.items()}


def join_parts(pieces: list[Parts]) -> Parts:
    """Return the lazy concatenation along tokens; raises ValueError when names differ."""
    names = list(pieces[0])
    if any(list(piece) != names for piece in pieces):
        raise ValueError("pieces of one tensor have different parts")
    return {name: mx.concatenate([p[name] for p in pieces], axis=TOKEN_AXIS) for name in names}


_IDENTITY = CodecIdentity("dense", 1)


@dataclass(frozen=True, slots=True)
class DenseCodec:
    """Lossless for every shape and dtype, a zero dim included; part `data` is the input."""

    @property
    def identity(self) -> CodecIdentity:
        return _IDENTITY

    def supports(self, dim: int, dtype: mx.Dtype) -> Support:
        return Support()

    def encode(self, x: mx.array) -> Parts:
        """Return the input under a name; nothing is copied."""
        return {"data": x}

    def encodable(self, x: mx.array, parts: Mapping[str, mx.array]) -> mx.array:
        return mx.array(True)

    def decode(self, parts: Mapping[str, mx.array], dtype: mx.Dtype) -> mx.array:
        """Return the stored array; raises ValueError rather than convert to another dtype."""
        require_parts(parts, ("data",), _IDENTITY)
        data = parts["data"]
        if data.dtype != dtype:
            raise ValueError(f"dense part is {data.dtype}, {dtype} was asked for")
        return data

    def parts_spec(self, shape: tuple[int, ...], dtype: mx.Dtype) -> dict[str, PartSpec]:
        return {"data": PartSpec(tuple(shape), dtype)}

    def bytes_per_token(self, heads: int, dim: int, dtype: mx.Dtype) -> int:
        return heads * dim * dtype.size
