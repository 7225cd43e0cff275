"""Small integers packed LSB-first into uint32 words, eight at a time in a 64-bit register.

Index i of a row occupies bits [i*b, i*b + b) of the row's stream; word w holds stream bits
[32w, 32w + 32). All machines that MLX runs on are little-endian, so bytes and words agree.
Lazy MLX operations; the work is three shifts and masks for eight values whatever `bits` is.
"""

from __future__ import annotations

import mlx.core as mx

_BYTES_PER_GROUP = 8
_NARROW = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}


def packed_words(dim: int, bits: int) -> int:
    """Return the uint32 words that a row of `dim` values takes."""
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
    low = _low_fields(field, lane)
    high = mx.array(low << field, dtype=mx.uint64)
    return (lanes & mx.array(low, dtype=mx.uint64)) | ((lanes >> (lane - field)) & high)


def _open_gaps(lanes: mx.array, field: int, lane: int) -> mx.array:
    """Undo `_close_gaps`."""
    low = _low_fields(field, lane)
    high = mx.array(low << field, dtype=mx.uint64)
    return (lanes & mx.array(low, dtype=mx.uint64)) | ((lanes & high) << (lane - field))


def _low_fields(field: int, lane: int) -> int:
    """Return 64 bits whose every second lane has its lowest `field` bits set."""
    return sum(((1 << field) - 1) << start for start in range(0, 64, 2 * lane))


def _fit_last(octets: mx.array, size: int) -> mx.array:
    return octets[..., :size] if octets.shape[-1] >= size else _pad_last(octets, size)


def _pad_last(octets: mx.array, size: int) -> mx.array:
    missing = size - octets.shape[-1]
    if not missing:
        return octets
    return mx.pad(octets, [(0, 0)] * (octets.ndim - 1) + [(0, missing)])
