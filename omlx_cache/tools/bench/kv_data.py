"""Keys, values and queries to measure codecs on, drawn so that runs can be repeated."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

OUTLIER_CHANNELS = 4
OUTLIER_FACTOR = 20.0
QUERY_TOKENS = 64


@dataclass(frozen=True, slots=True)
class KVSample:
    """One layer, evaluated: keys and values (1, heads, tokens, dim).

    `queries` (1, query heads, n, dim) are None where the model did not show them.
    """

    name: str
    keys: mx.array
    values: mx.array
    queries: mx.array | None

    @property
    def tokens(self) -> int:
        return int(self.keys.shape[2])

    @property
    def dense_bytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes)


def synthetic_samples(
    heads: int, tokens: int, dim: int, dtype: mx.Dtype, seed: int = 0
) -> tuple[KVSample, ...]:
    """Return two layers of Gaussian KV: plain, and with four loud key channels in each head.

    Loud channels are what real keys have, and what group-wise quantisation suffers from.
    """
    plain = _sample("plain", heads, tokens, dim, dtype, np.random.default_rng(seed), 1.0)
    rng = np.random.default_rng(seed + 1)
    return plain, _sample("outlier channels", heads, tokens, dim, dtype, rng, OUTLIER_FACTOR)


def _sample(
    name: str,
    heads: int,
    tokens: int,
    dim: int,
    dtype: mx.Dtype,
    rng: np.random.Generator,
    factor: float,
) -> KVSample:
    keys, values = (rng.normal(size=(1, heads, tokens, dim)).astype(np.float32) for _ in range(2))
    queries = rng.normal(size=(1, heads, QUERY_TOKENS, dim)).astype(np.float32)
    for head in range(heads):
        loud = rng.choice(dim, min(OUTLIER_CHANNELS, dim), replace=False)
        keys[:, head, :, loud] *= factor
    arrays = [mx.array(drawn).astype(dtype) for drawn in (keys, values, queries)]
    mx.eval(arrays)
    return KVSample(name, *arrays)
