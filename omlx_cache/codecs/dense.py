"""The codec that changes nothing: the tensor itself, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from .codec import Parts, PartSpec, Support, require_parts
from .identity import CodecIdentity

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
