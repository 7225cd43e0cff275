import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from omlx_cache.codecs.turbo import pack, packed_words, unpack


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
    assert words.dtype == mx.uint32
    assert words.tolist() == expected
    assert np.array_equal(np.array(unpack(words, bits, dim)), values)


@pytest.mark.parametrize("bits", range(1, 9))
def test_strided_and_offset_words_unpack_as_a_copy_does(bits: int) -> None:
    values = np.random.default_rng(bits).integers(0, 1 << bits, (5, 7, 48), dtype=np.uint8)
    words = pack(mx.array(values), bits)
    for view in (words[1:4, 2:5], words[:, ::2], words.swapaxes(0, 1)):
        copy = mx.array(np.array(view))
        assert mx.array_equal(unpack(view, bits, 48), unpack(copy, bits, 48)).item()


@pytest.mark.parametrize(
    ("dim", "bits", "words"), [(128, 4, 16), (128, 3, 12), (80, 3, 8), (1, 1, 1)]
)
def test_width_is_rounded_up_to_whole_words(dim: int, bits: int, words: int) -> None:
    assert packed_words(dim, bits) == words
