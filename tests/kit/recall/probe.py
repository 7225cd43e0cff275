"""Ask the recall model about a context whose KV went through something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from kit.recall.model import Recall
from kit.versions import keys_and_values

Through = Callable[[int, mx.array, mx.array], tuple[mx.array, mx.array]]
"""(layer, keys, values) of the context -> what a restored cache holds instead."""


def accuracy(model: Any, task: Recall, through: Through) -> float:
    """Return the share of questions answered right when every layer's KV went `through`.

    The whole context is the cached region; only the questions are computed afterwards.
    """
    right = total = 0
    for context, questions in zip(task.contexts, task.questions, strict=True):
        cache = make_prompt_cache(model)
        model(mx.array(context[None]), cache=cache)
        restored = [_restored(layer, cache[layer], through) for layer in range(len(cache))]
        logits = model(mx.array(questions.reshape(1, -1)), cache=restored)
        answers = mx.argmax(logits[0, ::2], axis=-1)
        right += int(mx.sum(answers == mx.array(questions[:, 1])).item())
        total += len(questions)
    return right / total


def _restored(layer: int, cache: KVCache, through: Through) -> KVCache:
    other = KVCache()
    other.update_and_fetch(*through(layer, *keys_and_values(cache)))
    return other
