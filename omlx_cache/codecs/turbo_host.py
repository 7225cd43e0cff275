"""TurboQuant decoded on a CPU by NumPy, straight to where the values belong: twice as fast as MLX
there, whose Hadamard transform takes most of the time.

The bits are the same: each sum is of the same two float32 numbers, and a sign commutes with all
rounding. A table turns 16 bits, four indices, into four levels that went through the first two
steps of the transform. For the other steps the vectors lie side by side, so that each step adds
long rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from . import turbo_tables

Rows = npt.NDArray[Any]

_BITS = 4
_FEW_DIMS = 16
_VECTORS = 512
"""Vectors that are decoded together: their arrays stay in a core's second cache."""


class HostDecoder:
    """Decodes vectors of `dim` channels in 4 bits to bfloat16 or float16. Use it in one thread, for
    many tensors: it keeps its arrays."""

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


def decodes(dim: int, bits: int) -> bool:
    return bits == _BITS and dim >= _FEW_DIMS and turbo_tables.is_power_of_two(dim)


@lru_cache(4)
def _first_steps(dim: int) -> Rows:
    """Return by 16 bits the four levels after two steps, as one item of 16 bytes."""
    levels = turbo_tables.codebook(dim, _BITS)
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
