"""`bench-kv`: what each KV codec saves, costs and loses, on synthetic or on a model's own KV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from omlx_cache.codecs import CODEC_NAMES, CodecPolicy, LayerCodecs, LayerShape
from omlx_cache_storage.format import planes

from .kv_coders import CodecCoder, Coder, Decoded, PlanesCoder
from .kv_data import KVSample
from .kv_metrics import Quality, mean_quality, quality
from .kv_timing import rate, restore_rate

RowName = Literal["dense", "affine8", "k8v4", "affine4", "turbo4", "turbo3", "turbo2", "zstd"]
ROW_NAMES: tuple[RowName, ...] = (
    "dense",
    "affine8",
    "k8v4",
    "affine4",
    "turbo4",
    "turbo3",
    "turbo2",
    "zstd",
)
Divergence = Callable[[Decoded], float]
"""Decoded layers -> KL of next-token distributions against the dense cache."""


@dataclass(frozen=True, slots=True)
class CodecRow:
    """One codec on one sample. Rates are GB/s (10^9) of dense bytes; None where nothing runs.

    `ratio` compares with the KV as the model holds it, in 16 bits where `dtype` is one of them.
    `kl` is in nats and None without a model.
    """

    codec: RowName
    bytes_per_token: float
    ratio: float
    quality: Quality
    kl: float | None
    encode_gbps: float | None
    decode_gbps: float | None
    restore_gbps: float


@dataclass(frozen=True, slots=True)
class SampleReport:
    """All rows for one sample; `skipped` says which were left out, and why."""

    name: str
    layers: int
    heads: int
    dim: int
    tokens: int
    dtype: str
    rows: tuple[CodecRow, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What one run measured, with the disk rate that restore rates are computed from."""

    device: str
    disk_gbps: float
    samples: tuple[SampleReport, ...]


def measure(
    name: str,
    layers: Sequence[KVSample],
    names: Sequence[RowName],
    disk_gbps: float,
    *,
    dense_last: int | None = 0,
    divergence: Divergence | None = None,
) -> SampleReport:
    """Measure rows on layers of equal length; takes seconds. Evaluates MLX.

    With `dense_last=0` every layer is encoded, None keeps those dense that a policy would.
    """
    rows, skipped = [], []
    for row_name in names:
        reason = _unfit(row_name, layers)
        if reason:
            skipped.append(f"{row_name}: {reason}")
            continue
        coder = _coder(row_name, layers, dense_last)
        rows.append(_row(row_name, coder, layers, disk_gbps, divergence))
    shape = layers[0].keys.shape
    dtype = str(layers[0].keys.dtype).rpartition(".")[2]
    return SampleReport(
        name, len(layers), shape[1], shape[3], shape[2], dtype, tuple(rows), tuple(skipped)
    )


def _row(
    name: RowName,
    coder: Coder,
    layers: Sequence[KVSample],
    disk_gbps: float,
    divergence: Divergence | None,
) -> CodecRow:
    dense = sum(layer.dense_bytes for layer in layers)
    stored = coder.encode(layers)
    decoded = coder.decode()
    encode = decode = None
    if name != "dense":
        encode = rate(lambda: _discard(coder.encode(layers)), dense)
        decode = rate(lambda: _discard(coder.decode()), dense)
    pairs = zip(layers, decoded, strict=True)
    return CodecRow(
        name,
        stored / layers[0].tokens,
        dense / stored,
        mean_quality([quality(layer, keys, values) for layer, (keys, values) in pairs]),
        None if divergence is None else divergence(decoded),
        encode,
        decode,
        restore_rate(disk_gbps, dense / stored, decode),
    )


def _coder(name: RowName, layers: Sequence[KVSample], dense_last: int | None) -> Coder:
    return PlanesCoder() if name == "zstd" else CodecCoder(_plan(name, layers, dense_last))


def _plan(
    name: RowName, layers: Sequence[KVSample], dense_last: int | None
) -> tuple[LayerCodecs, ...]:
    shapes = [
        LayerShape("paged", x.keys.shape[-1], x.values.shape[-1], x.keys.dtype) for x in layers
    ]
    chosen = next(codec for codec in CODEC_NAMES if codec == name)
    return CodecPolicy(chosen, dense_last=dense_last).plan(shapes)


def _unfit(name: RowName, layers: Sequence[KVSample]) -> str:
    """Return why a row cannot be measured on these layers, or an empty text."""
    if name == "zstd":
        if layers[0].keys.dtype not in (mx.float16, mx.bfloat16):
            return "byte planes are for 2-byte floats"
        return "" if planes.available() else "the extra 'zstd' is not installed"
    reasons = {codecs.reason for codecs in _plan(name, layers, 0)} - {""}
    return "; ".join(sorted(reasons))


def _discard(result: object) -> None:
    """Drop a result, so that timing includes freeing it."""
