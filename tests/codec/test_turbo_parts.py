"""What TurboQuant is made of: bits packed into words, and coordinates rounded to levels."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from omlx_cache.codecs import turbo_tables
from omlx_cache.codecs.turbo import pack, packed_words, unpack
from omlx_cache.codecs.turbo_tables import Rounder


def reference(row: list[int], bits: int) -> list[int]:
    """Pack through one Python integer: value i at bit i * bits, cut into 32-bit words."""
    stream = sum(value << (index * bits) for index, value in enumerate(row))
    words = -(-len(row) * bits // 32)
    return [(stream >> (32 * word)) & 0xFFFFFFFF for word in range(words)]


@settings(max_examples=examples(60))
@given(st.integers(1, 8), st.integers(1, 300), st.integers(0, 2**32))
def test_words_equal_those_of_one_long_integer_and_unpack_again(
    bits: int, dim: int, seed: int
) -> None:
    values = np.random.default_rng(seed).integers(0, 1 << bits, (2, 3, dim), dtype=np.uint8)
    words = pack(mx.array(values), bits)
    expected = [[reference(row.tolist(), bits) for row in rows] for rows in values]
    assert (words.dtype, words.shape[-1]) == (mx.uint32, packed_words(dim, bits))
    assert words.tolist() == expected
    assert np.array_equal(np.array(unpack(words, bits, dim)), values)


def around(boundaries: np.ndarray) -> np.ndarray:
    """Each boundary, its neighbours in float32, and values far outside."""
    near = [boundaries, np.nextafter(boundaries, -9), np.nextafter(boundaries, 9)]
    far = np.array([-9, -1, 0, 1, 9, -np.inf, np.inf], np.float32)
    return np.concatenate([*near, far]).astype(np.float32)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 512, 2048])
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_float_beside_a_codebooks_boundary_is_rounded_exactly(dim: int, bits: int) -> None:
    boundaries = turbo_tables.midpoints(turbo_tables.codebook(dim, bits))
    x = around(boundaries)
    found = np.array(Rounder(boundaries)(mx.array(x)))
    assert np.array_equal(found, np.searchsorted(boundaries, x))
