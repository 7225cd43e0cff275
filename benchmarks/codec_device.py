"""Codecs on a GPU: whether the fused kernels give the plain form's bits, and what they gain.

`python -m benchmarks.codec_device` prints text; it takes a minute and some 16 GB.
"""

import cProfile
import io
import logging
import pstats
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

import mlx.core as mx

from omlx_cache.arrays.mlxio import Array, evaluate
from omlx_cache.codecs import AffineCodec, Codec, Parts, TurboCodec, turbo, turbo_fused
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, Size
from omlx_cache.tools.bench.timing import seconds

HEADS, DIM = 8, 128
RATES: dict[str, Codec] = {
    "affine8": AffineCodec(8, 64), "affine4": AffineCodec(4, 64),
    "turbo4": TurboCodec(DIM, 4), "turbo3": TurboCodec(DIM, 3), "turbo2": TurboCodec(DIM, 2),
}  # fmt: skip
FORMS = (
    (128, 4, mx.bfloat16), (128, 3, mx.bfloat16), (128, 2, mx.bfloat16), (64, 4, mx.bfloat16),
    (256, 4, mx.bfloat16), (128, 4, mx.float16), (128, 4, mx.float32),
)  # fmt: skip
STORED = ("dense", "affine8", "k8v4", "affine4", "turbo4")
RUNS = 3
TENSOR_TOKENS = 16_384


def main(sizes: Sequence[int] = (8192, 32_768), tensors: int = 32, rows: int = 1 << 18) -> None:
    """Print everything: of `rows` vectors, of `tensors` of 32 MiB, and of stores of so many
    tokens."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    print(f"mlx {version('mlx')} on {mx.default_device()}, fused: {turbo_fused.available()}")
    print("\nfused kernels beside the plain form, in the bits of some vectors")
    for line in _bits(rows):
        print(line, flush=True)
    print("\nGB/s of dense bytes, one tensor after another")
    for line in _rates(tensors):
        print(line, flush=True)
    for tokens in sizes:
        size = Size("device", 32, HEADS, DIM, tokens, RUNS, 0, 0, 0)
        print(f"\nthrough the store, in memory, {size.kv_bytes / 1e9:.2f} GB of dense KV")
        for name in STORED:
            for line in _stored(size, name, profiled=tokens == max(sizes)):
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


def _stored(size: Size, name: str, *, profiled: bool) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        bed = Bed(size, Path(directory), codec=name, cold=False)
        with bed.store:
            live = bed.live_arrays()
            # Kernels are compiled on first use: a commit under another salt pays for that.
            bed.commit(bed.filled(live, "first"))
            bed.restore("first").abort()
            session = bed.filled(live)
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            commit = seconds(partial(bed.commit, session))
            commit_peak = mx.get_peak_memory() - before
            del live, session
            first = seconds(lambda: bed.restore().abort())
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            restores = [seconds(lambda: bed.restore().abort()) for _ in range(RUNS)]
            restore_peak = mx.get_peak_memory() - before
            rates = [size.kv_bytes / 1e9 / s for s in (commit, first, median(restores))]
            yield (
                f"  {name}: commit {commit * 1e3:.0f} ms, {rates[0]:.1f} GB/s (peak "
                f"+{commit_peak / 1e9:.2f} GB); hot restore first {first * 1e3:.0f} ms, "
                f"{rates[1]:.1f} GB/s, then {median(restores) * 1e3:.0f} ms, {rates[2]:.1f} GB/s "
                f"(peak +{restore_peak / 1e9:.2f} GB)"
            )
            if profiled and name in ("turbo4", "affine4"):
                yield _profile("hot restore", lambda: bed.restore().abort())
                refilled = bed.filled(bed.live_arrays(), "third")
                yield _profile("commit", partial(bed.commit, refilled))


def _profile(what: str, work: Callable[[], object]) -> str:
    profile = cProfile.Profile()
    profile.runcall(work)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(12)
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join([f"    profile of a {what}:", *(f"    {line}" for line in lines[1:])])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main([int(sys.argv[1]) // BLOCK_SIZE * BLOCK_SIZE], 1, 1 << 12)
    else:
        main()
