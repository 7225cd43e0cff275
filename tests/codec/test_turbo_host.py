"""NumPy's decoder: the bits of the plain form, in the place that it is given and nowhere else."""

import mlx.core as mx
import numpy as np
import pytest

from omlx_cache.codecs import turbo
from omlx_cache.codecs.turbo import HostDecoder, TurboCodec

DTYPES = (mx.bfloat16, mx.float16)


def parts_of(codec: TurboCodec, heads: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Any words, and norms up to the largest: what is decoded need not be of any vector."""
    drawn = np.random.default_rng(tokens)
    norms = np.exp(drawn.normal(0, 3, (heads, tokens))).astype(np.float16)
    norms[0, 0], norms[-1, -1] = 65504, 0
    words = drawn.integers(0, 1 << 32, (heads, tokens, codec.dim // 8), np.uint32)
    return norms, words


def plain(codec: TurboCodec, dtype: mx.Dtype, norms: np.ndarray, words: np.ndarray) -> np.ndarray:
    dense = turbo._decode(codec, dtype, mx.array(norms)[None], mx.array(words)[None])
    return np.array(dense.view(mx.uint16))[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [16, 64, 128, 256])
@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (3, 40), (2, 700)])
def test_it_gives_the_bits_of_the_plain_form(
    dim: int, dtype: mx.Dtype, heads: int, tokens: int
) -> None:
    decoder = HostDecoder(dim, bfloat=dtype == mx.bfloat16)
    for seed in (0, 1):
        codec = TurboCodec(dim, 4, seed)
        norms, words = parts_of(codec, heads, tokens)
        out = np.empty((heads, tokens, dim), np.uint16)
        decoder.decode(seed, norms, words, out)
        assert np.array_equal(out, plain(codec, dtype, norms, words))


def test_it_fills_a_part_of_a_larger_buffer_from_a_part_of_a_page() -> None:
    codec = TurboCodec(64, 4)
    norms, words = parts_of(codec, 2, 40)
    buffer = np.full((2, 100, 64), 0xABCD, np.uint16)
    decoder = HostDecoder(64, bfloat=True)
    decoder.decode(0, norms[:, 7:31], words[:, 7:31], buffer[:, 50:74])
    expected = np.full((2, 100, 64), 0xABCD, np.uint16)
    expected[:, 50:74] = plain(codec, mx.bfloat16, norms, words)[:, 7:31]
    assert np.array_equal(buffer, expected)
