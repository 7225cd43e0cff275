"""What every codec promises, asked of each."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from omlx_cache.codecs.codec import AffineCodec, Codec
from omlx_cache.codecs.policy import codec_named
from omlx_cache.codecs.turbo import TurboCodec

HEADS, TOKENS = 2, 40
CASES: list[tuple[Codec, int]] = [
    (AffineCodec(8, 64), 128),
    (AffineCodec(8, 32), 96),
    (AffineCodec(4, 64), 64),
    *((TurboCodec(128, bits), 128) for bits in (1, 2, 3, 4)),
    (TurboCodec(64, 3, seed=5, norm="plain"), 64),
    (TurboCodec(80, 3), 80),
    (TurboCodec(36, 5), 36),
]
DTYPES = (mx.float16, mx.bfloat16, mx.float32)
each_codec = pytest.mark.parametrize(
    ("codec", "dim"), CASES, ids=[c.identity.partition("#")[0] for c, _ in CASES]
)


def sample(dim: int, dtype: mx.Dtype, seed: int = 0, tokens: int = TOKENS) -> mx.array:
    drawn = np.random.default_rng(seed).normal(size=(1, HEADS, tokens, dim))
    return mx.array(drawn.astype(np.float32)).astype(dtype)


def bits_of(array: mx.array) -> bytes:
    return bytes(memoryview(mx.contiguous(array)))


def same(left: dict[str, mx.array], right: dict[str, mx.array]) -> bool:
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and bits_of(left[name]) == bits_of(right[name])
        for name in left
    )


@each_codec
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_are_as_their_spec_says(codec: Codec, dim: int, dtype: mx.Dtype) -> None:
    x = sample(dim, dtype)
    parts = codec.encode(x)
    back = codec.decode(parts, dtype)
    assert (back.shape, back.dtype) == (x.shape, dtype)
    spec = codec.parts_spec((1, HEADS, TOKENS, dim), dtype)
    assert list(parts) == list(spec)
    assert {n: (tuple(a.shape), a.dtype) for n, a in parts.items()} == {
        n: (s.shape, s.dtype) for n, s in spec.items()
    }
    assert all(array.shape[:3] == (1, HEADS, TOKENS) for array in parts.values())


@each_codec
@settings(max_examples=examples(15))
@given(data=st.data())
def test_encoding_slices_of_any_size_equals_slicing_the_encoded_whole(
    codec: Codec, dim: int, data: st.DataObject
) -> None:
    x = sample(dim, mx.bfloat16)
    cuts = data.draw(st.lists(st.integers(1, TOKENS - 1), unique=True, max_size=6).map(sorted))
    bounds = [0, *cuts, TOKENS]
    spans = list(itertools.pairwise(bounds))
    whole = codec.encode(x)
    dense = codec.decode(whole, mx.bfloat16)
    pieces = [codec.encode(x[:, :, start:stop]) for start, stop in spans]
    for piece, (start, stop) in zip(pieces, spans, strict=True):
        cut = {name: part[:, :, start:stop] for name, part in whole.items()}
        assert same(piece, cut)
        assert bits_of(codec.decode(cut, mx.bfloat16)) == bits_of(dense[:, :, start:stop])
    joined = {n: mx.concatenate([piece[n] for piece in pieces], axis=2) for n in whole}
    assert same(joined, whole)


@each_codec
def test_codec_found_by_its_stored_identity_decodes_alike(codec: Codec, dim: int) -> None:
    parts = codec.encode(sample(dim, mx.float16))
    again = codec_named(codec.identity)
    assert bits_of(again.decode(parts, mx.float16)) == bits_of(codec.decode(parts, mx.float16))


@each_codec
def test_ordinary_values_and_zeros_are_encodable(codec: Codec, dim: int) -> None:
    x = mx.concatenate([sample(dim, mx.float16), mx.zeros((1, HEADS, 3, dim), mx.float16)], axis=2)
    parts = codec.encode(x)
    assert codec.encodable(x, parts).item() is True
    decoded = codec.decode(parts, mx.float16)
    assert mx.all(decoded[:, :, TOKENS:] == 0).item()


@each_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_no_number_is_not_encodable(codec: Codec, dim: int, bad: float) -> None:
    x = sample(dim, mx.bfloat16)
    x[0, 1, 17, 5] = bad
    assert not codec.encodable(x, codec.encode(x)).item()


@each_codec
def test_parts_of_another_codec_are_refused(codec: Codec, dim: int) -> None:
    foreign = {"data": mx.zeros((1, 1, 1, dim)), "more": mx.zeros((1, 1, 1, dim))}
    with pytest.raises(ValueError, match="parts"):
        codec.decode(foreign, mx.float16)


@each_codec
def test_parts_that_disagree_about_tokens_are_refused(codec: Codec, dim: int) -> None:
    parts = codec.encode(sample(dim, mx.float16))
    first = next(iter(parts))
    with pytest.raises(ValueError, match="disagree"):
        codec.decode({**parts, first: parts[first][:, :, 1:]}, mx.float16)


def test_affine_matches_the_layout_of_mlx_lm_quantized_cache() -> None:
    from mlx_lm.models.cache import QuantizedKVCache

    keys, values = sample(64, mx.bfloat16), sample(64, mx.bfloat16, seed=1)
    cache = QuantizedKVCache(group_size=64, bits=8)
    cache.update_and_fetch(keys, values)
    ours = AffineCodec(8, 64).encode(keys)
    theirs = [array[:, :, :TOKENS] for array in cache.keys]
    assert [bits_of(a) for a in ours.values()] == [bits_of(a) for a in theirs]
