"""A model's own KV, queries and next-token distributions, for `bench-kv`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from .kv_coders import Decoded
from .kv_data import QUERY_TOKENS, KVSample
from .kv_metrics import mean_kl


class ModelProbe:
    """One prompt's caches in a model, to be run on with other KV in their place.

    The prompt's last 64 tokens are the continuation: they give the queries, and what the model
    predicts after each of them is compared. Only plain `KVCache` layers are measured; others keep
    what the model computed. Raises ValueError for a prompt of under 128 tokens or a model without
    such layers.
    """

    def __init__(self, model: Any, tokens: Sequence[int], step: int = 512) -> None:
        if len(tokens) < 2 * QUERY_TOKENS:
            raise ValueError(f"{len(tokens)} tokens are too few: at least {2 * QUERY_TOKENS}")
        self._model = model
        self._cache = make_prompt_cache(model)
        self._rest = mx.array([list(tokens[-QUERY_TOKENS:])])
        prompt = tokens[:-QUERY_TOKENS]
        for start in range(0, len(prompt), step):
            model(mx.array([list(prompt[start : start + step])]), cache=self._cache)
            mx.eval([layer.state for layer in self._cache])
        self._measured = [i for i, layer in enumerate(self._cache) if type(layer) is KVCache]
        if not self._measured:
            raise ValueError("this model has no plain KV layer to encode")
        with _captured_queries() as queries:
            self._logits = self._run([self._kv(index) for index in self._measured])
        self._queries = queries if len(queries) == len(self._cache) else []

    def samples(self) -> list[KVSample]:
        """Return each measured layer's KV; queries are None where attention did not show them."""
        return [self._sample(index) for index in self._measured]

    def divergence(self, decoded: Decoded) -> float:
        """Return the mean KL of the next-token distributions with decoded KV, in nats."""
        return mean_kl(self._logits, self._run(decoded))

    def _sample(self, index: int) -> KVSample:
        keys, values = self._kv(index)
        queries = self._queries[index] if self._queries else None
        if queries is not None and queries.shape[-1] != keys.shape[-1]:
            queries = None
        return KVSample(f"layer {index}", keys, values, queries)

    def _kv(self, index: int) -> tuple[mx.array, mx.array]:
        layer = self._cache[index]
        return layer.keys[:, :, : layer.offset], layer.values[:, :, : layer.offset]

    def _run(self, layers: Decoded) -> mx.array:
        """Return the continuation's logits (64, vocabulary) on a private copy of the cache."""
        cache = copy.deepcopy(self._cache)
        for index, (keys, values) in zip(self._measured, layers, strict=True):
            cache[index] = KVCache()
            cache[index].update_and_fetch(keys, values)
        logits: mx.array = self._model(self._rest, cache=cache)[0]
        mx.eval(logits)
        return logits


@contextmanager
def _captured_queries() -> Iterator[list[mx.array]]:
    """Collect the queries of each attention call in the block, in layer order.

    mlx-lm offers no hook, so MLX's attention function is replaced meanwhile: for a command that
    does nothing else, not for a server.
    """
    attend = mx.fast.scaled_dot_product_attention
    queries: list[mx.array] = []

    def recording(q: mx.array, *arguments: Any, **options: Any) -> mx.array:
        queries.append(q)
        return attend(q, *arguments, **options)

    mx.fast.scaled_dot_product_attention = recording
    try:
        yield queries
    finally:
        mx.fast.scaled_dot_product_attention = attend
