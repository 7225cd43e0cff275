"""Codecs on a GPU: whether the fused kernels give the plain form's bits, and what they gain.

`python -m benchmarks.codec_device [TENSORS [VECTORS]]` prints text; it takes a minute and some GB.
What a store makes of codecs says `omlx-cache bench kv`.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from statistics import median
from time import perf_counter

import mlx.core as mx

from omlx_cache.arrays.mlxio import Array, evaluate
from omlx_cache.codecs import turbo, turbo_fused
from omlx_cache.codecs.codec import AffineCodec, Codec, Parts
from omlx_cache.codecs.turbo import TurboCodec
from omlx_cache.tools.bench.figures import seconds

HEADS, DIM = 8, 128
RATES: dict[str, Codec] = {
    "affine8": AffineCodec(8, 64), "affine4": AffineCodec(4, 64),
    "turbo4": TurboCodec(DIM, 4), "turbo3": TurboCodec(DIM, 3), "turbo2": TurboCodec(DIM, 2),
}  # fmt: skip
FORMS = (
    (128, 4, mx.bfloat16), (128, 3, mx.bfloat16), (128, 2, mx.bfloat16), (64, 4, mx.bfloat16),
    (256, 4, mx.bfloat16), (128, 4, mx.float16), (128, 4, mx.float32),
)  # fmt: skip
RUNS = 3
TENSOR_TOKENS = 16_384


def main(tensors: int = 32, rows: int = 1 << 18) -> None:
    """Print everything: of `rows` vectors, and of `tensors` of 32 MiB."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    print(f"mlx {version('mlx')} on {mx.default_device()}, fused: {turbo_fused.available()}")
    print("\nfused kernels beside the plain form, in the bits of some vectors")
    for line in _bits(rows):
        print(line, flush=True)
    print("\nGB/s of dense bytes, one tensor after another")
    for line in _rates(tensors):
        print(line, flush=True)


def _bits(rows: int) -> Iterator[str]:
    for dim, bits, dtype in FORMS:
        codec = TurboCodec(dim, bits, 1)
        drawn = mx.random.normal((1, 1, rows, dim), key=mx.random.key(7))
        x = (drawn * mx.exp(drawn[..., :1])).astype(dtype)
        began = perf_counter()
        fused = codec.encode(x)
        evaluate(list(fused.values()))
        first = perf_counter() - began
        norms, words = turbo._encode(codec, x)
        norms = norms.astype(mx.float16)
        dense = codec.decode(fused, dtype)
        plain = turbo._decode(codec, dtype, fused["norms"], fused["indices"])
        evaluate([norms, words, dense, plain])
        differing = [
            _differing(fused["norms"], norms),
            _differing(fused["indices"], words),
            _differing(dense, plain),
        ]
        yield (
            f"  turbo{bits} of {dim} {dtype}: {differing[0]} norms, {differing[1]} words, "
            f"{differing[2]} decoded values differ; first use {first:.2f} s"
        )


def _differing(ours: Array, plain: Array) -> int:
    unsigned = {2: mx.uint16, 4: mx.uint32}[plain.itemsize]
    return int(str(mx.sum(ours.view(unsigned) != plain.view(unsigned)).item()))


def _rates(count: int) -> Iterator[str]:
    xs = [
        mx.random.normal((1, HEADS, TENSOR_TOKENS, DIM), key=mx.random.key(i)).astype(mx.bfloat16)
        for i in range(count)
    ]
    evaluate(xs)
    for name, codec in RATES.items():
        yield f"  {name}: {_rate(codec.encode, codec, xs)}"
        if isinstance(codec, TurboCodec):
            yield f"  {name}, plain: {_rate(_plain_encoder(codec), codec, xs, plain=True)}"


def _plain_encoder(codec: TurboCodec) -> Callable[[Array], Parts]:
    def encode(x: Array) -> Parts:
        norms, indices = turbo._encode(codec, x)
        return {"norms": norms.astype(mx.float16), "indices": indices}

    return encode


def _rate(
    encode: Callable[[Array], Parts], codec: Codec, xs: list[Array], *, plain: bool = False
) -> str:
    def decode(parts: Parts) -> Array:
        if plain and isinstance(codec, TurboCodec):
            return turbo._decode(codec, mx.bfloat16, parts["norms"], parts["indices"])
        return codec.decode(parts, mx.bfloat16)

    def each(work: Callable[[int], object]) -> float:
        def go() -> None:
            for index in range(0, len(xs), 4):
                evaluate([work(i) for i in range(index, min(index + 4, len(xs)))])

        go()
        return median(seconds(go) for _ in range(RUNS))

    parts = [encode(x) for x in xs[:1]]
    evaluate(parts)
    nbytes = sum(x.nbytes for x in xs) / 1e9
    coded = each(lambda i: encode(xs[i]))
    checked = each(lambda i: codec.encodable(xs[i], parts[0]))
    decoded = each(lambda _: decode(parts[0]))
    return (
        f"encode {nbytes / coded:.1f}, check {nbytes / checked:.1f}, decode {nbytes / decoded:.1f}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
