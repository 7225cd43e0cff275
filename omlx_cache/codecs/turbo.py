"""TurboQuant-MSE: rotate each vector at random, then round every coordinate to one codebook.

Per vector of `dim` elements the parts keep a float16 norm and `dim * bits` bits of indices, laid
out as mlx-vlm's `TurboQuantMSEState`. Source: arXiv 2504.19874; the stored norm is divided by the
norm of the rounded vector (vLLM's `_nc` presets do so), which keeps a second encoding from
shrinking the vector.

Index i of a vector occupies bits [i*b, i*b + b) of its stream; word w holds stream bits [32w, 32w +
32), little-endian. Packing is three shifts and masks for eight values in a 64-bit register.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from . import turbo_fused, turbo_tables
from .codec import FLOAT_DTYPES, Parts, PartSpec, require, require_parts
from .identity import make_identity
from .turbo_tables import Tables, gather

NormMode = Literal["corrected", "plain"]

_SMALLEST_NORM = 1e-6
_MIN_DIM, _MAX_DIM = 16, 2048
_BYTES_PER_GROUP = 8
_NARROW = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}

Rows = npt.NDArray[Any]
_HOST_BITS = 4
_FEW_DIMS = 16
_VECTORS = 512
"""Vectors that the host decodes together: their arrays stay in a core's second cache."""


@dataclass(frozen=True, slots=True)
class TurboCodec:
    """TurboQuant-MSE for one head dim; keys take `seed` and values `seed + 1` by convention.
    `norm="plain"` writes exactly what mlx-vlm writes; both kinds are read alike."""

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
    def identity(self) -> str:
        return _identity(self)

    def refusal(self, dim: int, dtype: mx.Dtype) -> str:
        if dim != self.dim:
            return f"this TurboQuant rotates {self.dim} channels, not {dim}"
        if dtype not in FLOAT_DTYPES:
            return f"{dtype} is not a floating-point dtype that TurboQuant takes"
        return ""

    def encode(self, x: mx.array) -> Parts:
        require(self, x.shape[-1], x.dtype)
        form = turbo_fused.Form(self.dim, self.bits, x.dtype, self.norm == "corrected")
        made = turbo_fused.encode(form, self._tables, x, lambda y: _encode(self, y))
        norms, indices = made or _encode(self, x)
        return {"norms": norms.astype(mx.float16), "indices": indices}

    def encodable(self, x: mx.array, parts: Mapping[str, mx.array]) -> mx.array:
        """False for an infinity or NaN, or a norm above float16's 65,504."""
        return mx.all(mx.isfinite(parts["norms"]))

    def decode(self, parts: Mapping[str, mx.array], dtype: mx.Dtype) -> mx.array:
        require_parts(self, parts, "norms", "indices")
        norms, indices = parts["norms"], parts["indices"]
        if indices.shape[-1] != packed_words(self.dim, self.bits):
            raise ValueError(f"{indices.shape[-1]} words a vector is not {self.identity}")
        form = turbo_fused.Form(self.dim, self.bits, dtype)
        fused = turbo_fused.decode(
            form, self._tables, norms, indices, lambda n, i, to: _decode(self, to, n, i)
        )
        return _decode(self, dtype, norms, indices) if fused is None else fused

    def parts_spec(self, shape: tuple[int, ...], dtype: mx.Dtype) -> dict[str, PartSpec]:
        *leading, dim = shape
        require(self, dim, dtype)
        return {
            "norms": PartSpec(tuple(leading), mx.float16),
            "indices": PartSpec((*leading, packed_words(dim, self.bits)), mx.uint32),
        }

    @property
    def _tables(self) -> Tables:
        return turbo_tables.tables(self.dim, self.bits, self.seed)


def hadamard(x: mx.array) -> mx.array:
    """Return the orthonormal Hadamard transform of the last axis; lazy. Raises ValueError unless
    its size is a power of two: for some others (72, 100, 144...) MLX's CPU kernel writes outside
    its buffer."""
    dim = x.shape[-1]
    if not turbo_tables.is_power_of_two(dim):
        raise ValueError(f"the Hadamard transform needs a power of two, not {dim} channels")
    return mx.hadamard_transform(x, scale=dim**-0.5)


def _encode(codec: TurboCodec, x: mx.array) -> tuple[mx.array, mx.array]:
    """Return the norms in float32, before they are stored, and the packed indices."""
    tables = codec._tables
    full = x.astype(mx.float32)
    norms = mx.linalg.norm(full, axis=-1)
    unit = full / mx.maximum(norms, _SMALLEST_NORM)[..., None]
    nearest = tables.nearest(_rotate(unit, tables))
    if codec.norm == "corrected":
        norms = norms / mx.linalg.norm(gather(tables.levels, nearest), axis=-1)
    return norms, pack(nearest, codec.bits)


def _decode(codec: TurboCodec, dtype: mx.Dtype, norms: mx.array, indices: mx.array) -> mx.array:
    tables = codec._tables
    rotated = gather(tables.levels, unpack(indices, codec.bits, codec.dim))
    unit = _rotate_back(rotated, tables)
    return (unit * norms[..., None].astype(mx.float32)).astype(dtype)


def _rotate(unit: mx.array, tables: Tables) -> mx.array:
    if tables.mixing.ndim == 1:
        return hadamard(unit * tables.mixing)
    return mx.matmul(unit, tables.mixing.T)


def _rotate_back(rotated: mx.array, tables: Tables) -> mx.array:
    if tables.mixing.ndim == 1:
        return hadamard(rotated) * tables.mixing
    return mx.matmul(rotated, tables.mixing)


@lru_cache(maxsize=64)
def _identity(codec: TurboCodec) -> str:
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


def packed_words(dim: int, bits: int) -> int:
    return -(-dim * bits // 32)


def pack(values: mx.array, bits: int) -> mx.array:
    """Return (..., words) uint32 from (..., dim) uint8 values below 2**bits, 1 <= bits <= 8."""
    *leading, dim = values.shape
    groups = -(-dim // _BYTES_PER_GROUP)
    lanes = _pad_last(values, groups * _BYTES_PER_GROUP).view(mx.uint64)
    for width in () if bits == 8 else (1, 2, 4):
        lanes = _close_gaps(lanes, width * bits, 8 * width)
    if bits in _NARROW:
        stream = lanes.astype(_NARROW[bits]).view(mx.uint8)
    else:
        octets = lanes.view(mx.uint8).reshape(*leading, groups, _BYTES_PER_GROUP)
        stream = octets[..., :bits].reshape(*leading, groups * bits)
    return _fit_last(stream, 4 * packed_words(dim, bits)).view(mx.uint32)


def unpack(words: mx.array, bits: int, dim: int) -> mx.array:
    """Return (..., dim) uint8 values from (..., words) uint32."""
    leading = words.shape[:-1]
    groups = -(-dim // _BYTES_PER_GROUP)
    stream = _fit_last(words.view(mx.uint8), groups * bits)
    if bits in _NARROW:
        lanes = stream.view(_NARROW[bits]).astype(mx.uint64)
    else:
        octets = _pad_last(stream.reshape(*leading, groups, bits), _BYTES_PER_GROUP)
        lanes = octets.view(mx.uint64).reshape(*leading, groups)
    for width in () if bits == 8 else (4, 2, 1):
        lanes = _open_gaps(lanes, width * bits, 8 * width)
    return _fit_last(lanes.view(mx.uint8), dim)


def _close_gaps(lanes: mx.array, field: int, lane: int) -> mx.array:
    """Join neighbours: two fields of `field` bits, `lane` bits apart, become one of twice that."""
    low, high = _fields(field, lane)
    return (lanes & low) | ((lanes >> (lane - field)) & high)


def _open_gaps(lanes: mx.array, field: int, lane: int) -> mx.array:
    low, high = _fields(field, lane)
    return (lanes & low) | ((lanes & high) << (lane - field))


def _fields(field: int, lane: int) -> tuple[mx.array, mx.array]:
    """Return the masks of the first field of each two lanes, and of the one next to it."""
    low = sum(((1 << field) - 1) << start for start in range(0, 64, 2 * lane))
    return mx.array(low, dtype=mx.uint64), mx.array(low << field, dtype=mx.uint64)


def _fit_last(octets: mx.array, size: int) -> mx.array:
    return octets[..., :size] if octets.shape[-1] >= size else _pad_last(octets, size)


def _pad_last(octets: mx.array, size: int) -> mx.array:
    missing = size - octets.shape[-1]
    if not missing:
        return octets
    return mx.pad(octets, [(0, 0)] * (octets.ndim - 1) + [(0, missing)])


class HostDecoder:
    """Decodes vectors of `dim` channels in 4 bits to bfloat16 or float16 by NumPy, to where they
    belong: on a CPU twice as fast as MLX, whose Hadamard transform takes most of the time. One
    thread uses it for many tensors: it keeps its arrays.

    The bits are the same: each sum is of the same two float32 numbers, and a sign commutes with all
    rounding. A table turns 16 bits, four indices, into four levels that went through the first two
    steps of the transform. For the other steps the vectors lie side by side, so that each step adds
    long rows.
    """

    def __init__(self, dim: int, *, bfloat: bool) -> None:
        self._dim = dim
        self._bfloat = bfloat
        self._table = _first_steps(dim)
        self._scale = np.float32(dim**-0.5)
        size = dim * _VECTORS
        self._places = np.empty(size // 4, np.uint16)
        self._sums = np.empty(size, np.float32)
        self._half = np.empty(size // 2, np.float32)
        self._bits = np.empty(size, np.uint32)
        self._narrow = np.empty(size, np.uint16)

    def decode(self, seed: int, norms: Rows, words: Rows, out: Rows) -> None:
        """Fill `out` (heads, tokens, dim), two bytes an element, from norms (heads, tokens) in
        float16 and words (heads, tokens, dim / 8)."""
        signs = _sign_bits(self._dim, seed)
        heads, tokens = norms.shape
        together = max(1, _VECTORS // max(1, tokens))
        for head in range(0, heads, together):
            for token in range(0, tokens, _VECTORS):
                part = np.s_[head : head + together, token : token + _VECTORS]
                self._some(signs, norms[part], words[part], out[part])

    def _some(self, signs: Rows, norms: Rows, words: Rows, out: Rows) -> None:
        heads, tokens = norms.shape
        count = heads * tokens
        fours = self._dim // 4
        places = self._places[: fours * count].reshape(fours, heads, tokens)
        places[...] = words.view(np.uint16).transpose(2, 0, 1)
        sums = self._sums[: self._dim * count]
        np.take(self._table, places.reshape(-1), out=sums.view(np.complex128), mode="clip")
        self._add(sums, fours, 4 * count)
        rows = sums.reshape(fours, 4 * count)
        np.multiply(rows, self._scale, out=rows)
        np.multiply(rows, np.repeat(norms.astype(np.float32).reshape(-1), 4), out=rows)
        narrow = self._narrowed(sums)
        values = narrow.view(np.uint64).reshape(fours, heads, tokens)
        np.bitwise_xor(values, signs[:, None, None], out=values)
        out.view(np.uint64)[...] = values.transpose(1, 2, 0)

    def _add(self, sums: Rows, fours: int, width: int) -> None:
        step = 1
        while step < fours:
            pairs = sums.reshape(-1, 2, step * width)
            low, high = pairs[:, 0], pairs[:, 1]
            differences = self._half[: sums.size // 2].reshape(low.shape)
            np.subtract(low, high, out=differences)
            np.add(low, high, out=low)
            high[...] = differences
            step *= 2

    def _narrowed(self, sums: Rows) -> Rows:
        narrow = self._narrow[: sums.size]
        if not self._bfloat:
            with np.errstate(over="ignore", invalid="ignore"):
                narrow.view(np.float16)[...] = sums
            return narrow
        raw, bits = sums.view(np.uint32), self._bits[: sums.size]
        np.right_shift(raw, 16, out=bits)
        np.bitwise_and(bits, 1, out=bits)
        np.add(bits, 0x7FFF, out=bits)
        np.add(raw, bits, out=bits)
        narrow[...] = bits.view(np.uint16)[1::2]
        return narrow


def host_decodes(dim: int, bits: int) -> bool:
    return bits == _HOST_BITS and dim >= _FEW_DIMS and turbo_tables.is_power_of_two(dim)


@lru_cache(4)
def _first_steps(dim: int) -> Rows:
    """Return by 16 bits the four levels after two steps, as one item of 16 bytes."""
    levels = turbo_tables.codebook(dim, _HOST_BITS)
    codes = np.arange(1 << 16)
    a, b, c, d = (levels[codes >> shift & 15] for shift in (0, 4, 8, 12))
    table = np.stack(
        [(a + b) + (c + d), (a - b) + (c - d), (a + b) - (c + d), (a - b) - (c - d)], 1
    )
    joined: Rows = np.ascontiguousarray(table, np.float32).view(np.complex128).reshape(-1)
    joined.flags.writeable = False
    return joined


@lru_cache(64)
def _sign_bits(dim: int, seed: int) -> Rows:
    """Return the signs of four coordinates each, as the sign bits of four items of two bytes."""
    negative = turbo_tables.signs(dim, seed) < 0
    return np.where(negative, 0x8000, 0).astype(np.uint16).view(np.uint64)
