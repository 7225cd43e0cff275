"""How far decoded keys and values are from what was encoded. Evaluates MLX; float32 inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import mlx.core as mx

from .kv_data import KVSample


@dataclass(frozen=True, slots=True)
class Quality:
    """Errors of one codec on one sample; all are zero for a lossless one.

    `key_mse`, `value_mse`: squared error over squared size. `max_error`: the largest absolute
    one. `inner_error`: RMS error of query-key products over their RMS. `softmax_tv`: total
    variation between attention weights with true and with decoded keys, mean over queries. The
    last two are None without queries.
    """

    key_mse: float
    value_mse: float
    max_error: float
    inner_error: float | None
    softmax_tv: float | None


def quality(sample: KVSample, keys: mx.array, values: mx.array) -> Quality:
    """Compare decoded keys and values with a sample's."""
    largest = mx.maximum(_largest(sample.keys, keys), _largest(sample.values, values))
    inner, variation = _attention_errors(sample, keys)
    return Quality(
        _relative_mse(sample.keys, keys),
        _relative_mse(sample.values, values),
        _number(largest),
        inner,
        variation,
    )


def mean_quality(parts: Sequence[Quality]) -> Quality:
    """Return the mean over layers; the largest error stays the largest."""
    return Quality(
        fmean(part.key_mse for part in parts),
        fmean(part.value_mse for part in parts),
        max(part.max_error for part in parts),
        _mean_known([part.inner_error for part in parts]),
        _mean_known([part.softmax_tv for part in parts]),
    )


def mean_kl(true_logits: mx.array, logits: mx.array) -> float:
    """Return the mean KL divergence, in nats, of next-token distributions (tokens, vocabulary)."""
    log_p, log_q = (
        x - mx.logsumexp(x, axis=-1, keepdims=True) for x in (_full(true_logits), _full(logits))
    )
    divergence = mx.sum(mx.exp(log_p) * (log_p - log_q), axis=-1)
    return max(0.0, _number(mx.mean(divergence)))


def _attention_errors(sample: KVSample, keys: mx.array) -> tuple[float | None, float | None]:
    if sample.queries is None:
        return None, None
    true, other = (_scores(sample.queries, k) for k in (sample.keys, keys))
    moved = mx.abs(mx.softmax(true, axis=-1) - mx.softmax(other, axis=-1))
    variation = mx.mean(mx.sum(moved, axis=-1)) / 2
    return _relative_mse(true, other) ** 0.5, _number(variation)


def _scores(queries: mx.array, keys: mx.array) -> mx.array:
    """Scaled products; the queries of several heads may share one KV head."""
    dim, heads = queries.shape[-1], keys.shape[1]
    shared = _full(queries).reshape(1, heads, -1, dim)
    scores: mx.array = shared @ _full(keys).swapaxes(-1, -2) * dim**-0.5
    return scores


def _relative_mse(true: mx.array, other: mx.array) -> float:
    size = mx.sum(_full(true) ** 2)
    error = mx.sum((_full(other) - _full(true)) ** 2)
    return _number(error / mx.maximum(size, 1e-30))


def _largest(true: mx.array, other: mx.array) -> mx.array:
    return mx.max(mx.abs(_full(true) - _full(other)))


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _number(x: mx.array) -> float:
    value: Any = x.item()
    return float(value)


def _full(x: mx.array) -> mx.array:
    return x.astype(mx.float32)
