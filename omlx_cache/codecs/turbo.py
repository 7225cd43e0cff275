"""TurboQuant-MSE: rotate each vector at random, then round every coordinate to one codebook.

Per vector of `dim` elements the parts keep a float16 norm and `dim * bits` bits of indices, laid
out as mlx-vlm's `TurboQuantMSEState`. Source: arXiv 2504.19874; the stored norm is divided by the
norm of the rounded vector (vLLM's `_nc` presets do so), which keeps a second encoding from
shrinking the vector and costs the reader nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import mlx.core as mx

from . import turbo_fused, turbo_tables
from .bitpack import pack, packed_words, unpack
from .codec import (
    FLOAT_DTYPES,
    Parts,
    PartSpec,
    Support,
    require,
    require_parts,
    spec_bytes_per_token,
)
from .identity import CodecIdentity, make_identity
from .rounding import Rounder, gather

NormMode = Literal["corrected", "plain"]

_SMALLEST_NORM = 1e-6
_MIN_DIM, _MAX_DIM = 16, 2048


class _Tables(NamedTuple):
    """The constants as evaluated arrays, which any thread may read, and the rounding to them.

    `mixing` is the sign vector of the Hadamard rotation, or the matrix of a dense one.
    """

    levels: mx.array
    edges: mx.array
    nearest: Rounder
    mixing: mx.array


@dataclass(frozen=True, slots=True)
class TurboCodec:
    """TurboQuant-MSE for one head dim; keys take `seed` and values `seed + 1` by convention.

    `norm="plain"` writes exactly what mlx-vlm writes; both kinds are read alike.
    """

    dim: int
    bits: int
    seed: int = 0
    norm: NormMode = "corrected"

    def __post_init__(self) -> None:
        if not _MIN_DIM <= self.dim <= _MAX_DIM:
            raise ValueError(f"TurboQuant takes {_MIN_DIM} to {_MAX_DIM} channels, not {self.dim}")
        if not 1 <= self.bits <= 8:
            raise ValueError(f"TurboQuant takes 1 to 8 bits, not {self.bits}")
        if self.seed < 0:
            raise ValueError(f"TurboQuant's seed is negative: {self.seed}")
        if self.norm not in ("corrected", "plain"):
            raise ValueError(f"unknown norm mode {self.norm!r}")

    @property
    def identity(self) -> CodecIdentity:
        return _identity(self)

    def supports(self, dim: int, dtype: mx.Dtype) -> Support:
        if dim != self.dim:
            return Support(f"this TurboQuant rotates {self.dim} channels, not {dim}")
        if dtype not in FLOAT_DTYPES:
            return Support(f"{dtype} is not a floating-point dtype that TurboQuant takes")
        return Support()

    def encode(self, x: mx.array) -> Parts:
        require(self.supports(x.shape[-1], x.dtype))
        norms, indices = _fused_encode(self, x) or _plain_encode(self, x)
        return {"norms": norms, "indices": indices}

    def encodable(self, x: mx.array, parts: Mapping[str, mx.array]) -> mx.array:
        """False for an infinity or NaN, or a norm above float16's 65,504."""
        return mx.all(mx.isfinite(parts["norms"]))

    def decode(self, parts: Mapping[str, mx.array], dtype: mx.Dtype) -> mx.array:
        require_parts(parts, ("norms", "indices"), self.identity)
        norms, indices = parts["norms"], parts["indices"]
        if indices.shape[-1] != packed_words(self.dim, self.bits):
            raise ValueError(f"{indices.shape[-1]} words a vector is not {self.identity}")
        fused = _fused_decode(self, dtype, norms, indices)
        return _decode(self, dtype, norms, indices) if fused is None else fused

    def parts_spec(self, shape: tuple[int, ...], dtype: mx.Dtype) -> dict[str, PartSpec]:
        *leading, dim = shape
        require(self.supports(dim, dtype))
        return {
            "norms": PartSpec(tuple(leading), mx.float16),
            "indices": PartSpec((*leading, packed_words(dim, self.bits)), mx.uint32),
        }

    def bytes_per_token(self, heads: int, dim: int, dtype: mx.Dtype) -> int:
        return spec_bytes_per_token(self.parts_spec((1, heads, 1, dim), dtype))


def hadamard(x: mx.array) -> mx.array:
    """Return the orthonormal Hadamard transform of the last axis; lazy.

    Raises ValueError unless its size is a power of two: for some others (72, 100, 144...) MLX's
    CPU kernel writes outside its buffer.
    """
    dim = x.shape[-1]
    if not turbo_tables.is_power_of_two(dim):
        raise ValueError(f"the Hadamard transform needs a power of two, not {dim} channels")
    return mx.hadamard_transform(x, scale=dim**-0.5)


def _fused_encode(codec: TurboCodec, x: mx.array) -> tuple[mx.array, mx.array] | None:
    if not turbo_fused.available():
        return None
    form = turbo_fused.Form(codec.dim, codec.bits, x.dtype, codec.norm == "corrected")
    return turbo_fused.encode(form, _fused_tables(codec), x, lambda y: _encode(codec, y))


def _fused_decode(
    codec: TurboCodec, dtype: mx.Dtype, norms: mx.array, indices: mx.array
) -> mx.array | None:
    if not turbo_fused.available():
        return None
    form = turbo_fused.Form(codec.dim, codec.bits, dtype)
    return turbo_fused.decode(
        form, _fused_tables(codec), norms, indices, lambda n, i, to: _decode(codec, to, n, i)
    )


def _fused_tables(codec: TurboCodec) -> turbo_fused.Tables:
    tables = _tables(codec.dim, codec.bits, codec.seed)
    return turbo_fused.Tables(tables.mixing, tables.edges, tables.levels)


def _plain_encode(codec: TurboCodec, x: mx.array) -> tuple[mx.array, mx.array]:
    norms, indices = _encode(codec, x)
    return norms.astype(mx.float16), indices


def _encode(codec: TurboCodec, x: mx.array) -> tuple[mx.array, mx.array]:
    """Return the norms in float32, as they are before they are stored, and the packed indices."""
    tables = _tables(codec.dim, codec.bits, codec.seed)
    full = x.astype(mx.float32)
    norms = mx.linalg.norm(full, axis=-1)
    unit = full / mx.maximum(norms, _SMALLEST_NORM)[..., None]
    nearest = tables.nearest(_rotate(unit, tables))
    if codec.norm == "corrected":
        norms = norms / mx.linalg.norm(gather(tables.levels, nearest), axis=-1)
    return norms, pack(nearest, codec.bits)


def _decode(codec: TurboCodec, dtype: mx.Dtype, norms: mx.array, indices: mx.array) -> mx.array:
    tables = _tables(codec.dim, codec.bits, codec.seed)
    rotated = gather(tables.levels, unpack(indices, codec.bits, codec.dim))
    unit = _rotate_back(rotated, tables)
    return (unit * norms[..., None].astype(mx.float32)).astype(dtype)


def _rotate(unit: mx.array, tables: _Tables) -> mx.array:
    if tables.mixing.ndim == 1:
        return hadamard(unit * tables.mixing)
    return mx.matmul(unit, tables.mixing.T)


def _rotate_back(rotated: mx.array, tables: _Tables) -> mx.array:
    if tables.mixing.ndim == 1:
        return hadamard(rotated) * tables.mixing
    return mx.matmul(rotated, tables.mixing)


@lru_cache(maxsize=64)
def _identity(codec: TurboCodec) -> CodecIdentity:
    rotation = "hadamard" if turbo_tables.is_power_of_two(codec.dim) else "dense"
    return make_identity(
        "turbo-mse",
        1,
        {
            "bits": codec.bits,
            "dim": codec.dim,
            "norm": codec.norm,
            "rotation": rotation,
            "seed": codec.seed,
        },
        turbo_tables.digests(codec.dim, codec.bits, codec.seed),
    )


@lru_cache(maxsize=64)
def _tables(dim: int, bits: int, seed: int) -> _Tables:
    levels = turbo_tables.codebook(dim, bits)
    mixing = (
        turbo_tables.signs(dim, seed)
        if turbo_tables.is_power_of_two(dim)
        else turbo_tables.rotation(dim, seed)
    )
    boundaries = turbo_tables.midpoints(levels)
    edges = mx.array(boundaries)
    return _Tables(mx.array(levels), edges, Rounder(boundaries), mx.array(mixing))
