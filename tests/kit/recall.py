"""The recall model and its task.

A context lists pairs (key, value) in which every key occurs once. A question repeats one key, and
the answer is the value that followed it. This takes a head that looks at the previous token and a
head that finds a match far back. Keys carry a large constant bias in a few channels, as those of
larger models do. A sketch of both heads, trained for minutes,
made the weights (`train.py` until 2026-11).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache, make_prompt_cache

from kit.versions import keys_and_values

KEYS = 192
VALUES = 64
WEIGHTS = Path(__file__).with_name("recall.safetensors")

Tokens = npt.NDArray[np.int32]


class Recall(NamedTuple):
    """Contexts (batch, 2 * pairs) and questions (batch, questions, 2): the key, the answer."""

    contexts: Tokens
    questions: Tokens


def build() -> Any:
    """Make the model with random weights: two layers, one KV head of 64 channels."""
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        rms_norm_eps=1e-5,
        vocab_size=KEYS + VALUES,
        rope_theta=10000.0,
        attention_bias=True,
        tie_word_embeddings=True,
    )
    return llama.Model(args)


def load(dtype: mx.Dtype = mx.float32) -> Any:
    """Return the trained model, evaluated."""
    model = build()
    model.load_weights([(k, v.astype(dtype)) for k, v in mx.load(str(WEIGHTS)).items()])
    mx.eval(model.parameters())
    return model


def draw(rng: np.random.Generator, batch: int, pairs: int, questions: int) -> Recall:
    """Draw contexts, and for each of them different questions about them."""
    contexts = np.empty((batch, pairs, 2), np.int32)
    asked = np.empty((batch, questions, 2), np.int32)
    for row in range(batch):
        contexts[row, :, 0] = rng.permutation(KEYS)[:pairs]
        contexts[row, :, 1] = KEYS + rng.integers(0, VALUES, pairs)
        asked[row] = contexts[row, rng.permutation(pairs)[:questions]]
    return Recall(contexts.reshape(batch, -1), asked)


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
