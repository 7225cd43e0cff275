"""The bytes, time and loss of each codec, through the store: the same KV stored dense and encoded.

The KV is Gaussian. In its second layer four key channels of each head are loud, as in real keys:
group-wise quantisation suffers from them.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import Array, evaluate
from omlx_cache.codecs.identity import CODEC_NAMES, CodecName
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.disk import can_forget, forget
from omlx_cache.tools.bench.figures import BenchRow, Loss, Measured, PreparedWork, Size, seconds
from omlx_cache_storage.cold.page_reader import read_header
from omlx_cache_storage.format import packing

HEADS, HEAD_DIM = 8, 128
LOUD_CHANNELS, LOUD_FACTOR = 4, 20.0
QUERIES = 64
DENSE = "stored dense"
Layers = list[tuple[Array, Array]]
"""Keys and values of each."""


class Encoded(NamedTuple):
    seconds: dict[str, float]
    nbytes: int
    loss: list[float]


def measure_codecs(size: Size, directory: Path) -> Measured:
    """Measure every codec on two layers; rates are those of the dense bytes that come out. Files
    are forgotten before each cold restore where that works."""
    size = replace(size, layers=2, heads=HEADS, head_dim=HEAD_DIM)
    live = [_drawn(size, seed, factor) for seed, factor in enumerate((1.0, LOUD_FACTOR))]
    found: dict[str, Encoded] = {
        name: _encoded(size, live, directory, name, "dense") for name in CODEC_NAMES
    }
    if packing.available():
        found["zstd on disk"] = _encoded(size, live, directory, "dense", "zstd")
    dense = found["dense"]
    rows = [
        BenchRow(f"{what}, {name}", took, DENSE, dense.seconds[what], size.kv_bytes)
        for name, one in found.items()
        if one is not dense
        for what, took in one.seconds.items()
    ]
    values = size.tokens * size.layers
    losses = [
        Loss(name, one.nbytes / values, dense.nbytes / one.nbytes, *one.loss)
        for name, one in found.items()
    ]
    return Measured(rows, losses=losses)


def _drawn(size: Size, seed: int, factor: float) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    shape = (1, size.heads, size.tokens, size.head_dim)
    keys, values = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    for head in range(size.heads):
        keys[:, head, :, rng.choice(size.head_dim, LOUD_CHANNELS, replace=False)] *= factor
    layer = mx.array(keys).astype(mx.bfloat16), mx.array(values).astype(mx.bfloat16)
    evaluate(layer)
    return layer


def _encoded(
    size: Size, live: Layers, directory: Path, codec: CodecName, cold_codec: str
) -> Encoded:
    pages = directory / f"{codec} {cold_codec}"
    # Every layer is encoded: a store leaves the last one dense under some codecs.
    policy = CodecPolicy(codec, dense_last=0)
    bed = Bed(size, pages, codec_policy=policy, cold_codec=cold_codec)
    with bed.store:
        # Kernels are compiled on first use: a commit that does not count pays for that.
        bed.commit(bed.again(live))
        commit = PreparedWork(partial(bed.again, live), bed.commit)
        took = {"commit": median(seconds(commit) for _ in range(size.runs))}
        bed.again(live).abort()
        bed.commit(bed.filled(live))
        took["restore, hot"] = median(_restored(bed) for _ in range(size.runs))
        bed.flush()
    files = list(pages.rglob("*.safetensors"))
    nbytes = sum(path.stat().st_size - read_header(path).data_offset for path in files)
    cold = []
    for _ in range(size.runs):
        if can_forget():
            forget(pages)
        bed = Bed(size, pages, hot=False, codec_policy=policy, cold_codec=cold_codec)
        with bed.store:
            cold.append(_restored(bed))
            caches = bed.restore().prompt_cache
    took["restore, cold"] = median(cold)
    end = size.tokens
    restored = [(cache.keys[:, :, :end], cache.values[:, :, :end]) for cache in caches]
    return Encoded(took, nbytes, _loss(live, restored))


def _restored(bed: Bed) -> float:
    return seconds(lambda: bed.restore().abort())


def _loss(live: Layers, restored: Layers) -> list[float]:
    errors = [_error(true, other) for true, other in zip(live[0], restored[0], strict=True)]
    both = zip(live, restored, strict=True)
    return errors + [_variation(true[0], other[0]) for true, other in both]


def _error(true: Array, other: Array) -> float:
    true, other = true.astype(mx.float32), other.astype(mx.float32)
    return float(mx.sum((other - true) ** 2) / mx.sum(true**2))


def _variation(true: Array, other: Array) -> float:
    """Return the mean total variation of attention weights, for queries that are Gaussian too."""
    _, heads, _, dim = true.shape
    queries = mx.random.normal((1, heads, QUERIES, dim), key=mx.random.key(7)) * dim**-0.5
    before, after = (
        mx.softmax(queries @ keys.astype(mx.float32).swapaxes(-1, -2), axis=-1)
        for keys in (true, other)
    )
    return float(mx.mean(mx.sum(mx.abs(before - after), axis=-1)) / 2)
