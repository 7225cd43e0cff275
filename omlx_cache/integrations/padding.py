"""Whether a model's recurrent states are the same in a batch as alone.

Rows of a batch that are shorter than the longest are padded behind. Some of mlx-lm's model files
compute the padding into the states of such rows, and with them all that follows.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from omlx_cache.adapters.registry import leaves
from omlx_cache.arrays.mlxio import evaluate
from omlx_cache.integrations.old_batches import batchable
from omlx_cache.mlx_lm_versions import is_old

_log = logging.getLogger(__name__)

CLOSE = 0.02


def heeds_padding(model: Any, make_cache: Callable[[], list[Any]] | None = None) -> bool:
    """Return False for a model whose states depend on the padding behind a row, and for one with
    states for which the answer is unknown. Never raises.

    `make_cache` makes other empty caches than mlx-lm would.
    Computes a few tokens twice for a model with recurrent states, with other padding: call it on
    the model's thread.
    """
    make_cache = make_cache or (lambda: make_prompt_cache(model))
    try:
        if not _states(make_cache()):
            return True
    except Exception as error:
        _log.debug("this model's caches cannot be made: %r", error)
        return True
    try:
        little = _beside_a_longer_row(model, make_cache, 2, padding=0)
        much = _beside_a_longer_row(model, make_cache, 32, padding=1)
    except Exception as error:
        _log.warning("whether this model heeds padding cannot be told: %r", error)
        return False
    return all(_close(one, other) for one, other in zip(little, much, strict=True))


def refuse_batches(provider: Any) -> None:
    """Have mlx-lm's ModelProvider say that its model is served one request at a time, where a batch
    would compute padding into its states. Call it on the model's thread, once for each model."""
    if provider.is_batchable and not heeds_padding(provider.model):
        provider.is_batchable = False
        _log.info("one request at a time: in a batch this model computes padding")


def _close(one: mx.array, other: mx.array) -> bool:
    """True where nothing but the order of sums makes two states differ."""
    one, other = one.astype(mx.float32), other.astype(mx.float32)
    return bool((mx.abs(one - other).max() <= CLOSE * mx.abs(one).max()).item())


def _beside_a_longer_row(
    model: Any, make_cache: Callable[[], list[Any]], more: int, padding: int
) -> list[mx.array]:
    """Return the states of a row that has tokens and gets two, beside one that gets `more`."""
    rows = [make_cache(), make_cache()]
    if is_old():
        rows = [batchable(row) for row in rows]
    batch = [first.merge([first, second]) for first, second in zip(*rows, strict=True)]
    logits = [model(mx.array([[4, 5, 6, 7]] * 2), cache=batch)]
    evaluate(logits)
    for cache in batch:
        cache.prepare(lengths=[2 + more, 2], right_padding=[0, more])
    logits.append(model(mx.array([[3] * (2 + more), [1, 2] + [padding] * more]), cache=batch))
    for cache in batch:
        cache.finalize()
    states = _states([cache.extract(1) for cache in batch])
    arrays = [array for state in states for array in state.cache if array is not None]
    evaluate([logits, arrays])
    return arrays


def _states(caches: Sequence[Any]) -> list[Any]:
    return [cache for _, cache in leaves(caches) if isinstance(cache, ArraysCache)]
