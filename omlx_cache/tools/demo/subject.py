"""The model that the demo runs: mlx-lm's Qwen3 with drawn weights, or one that the user names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models import qwen3

from omlx_cache.arrays.mlxio import Array, evaluate
from omlx_cache.tools.demo.errors import DemoError
from omlx_cache.tools.places import is_missing_folder

VOCABULARY = 512
SEED = 20
_SHAPE = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1 << 20,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
}
_HEAD_NORM = 2.0
_ATTENTION_SCALE = 3.0
"""Weight of the query and key norms, and factor on what attention adds: attention picks single
tokens and matters, so that one other token anywhere in the context changes what comes next."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, its name for people, its vocabulary, and how text becomes its tokens."""

    model: Any
    name: str
    vocabulary: int
    encode: Callable[[str], list[int]]


def load_subject(model: str | None) -> Subject:
    """Return the model that mlx-lm finds under a path or id, or the small one for None.

    Evaluates its weights. Raises DemoError when mlx-lm cannot load it.
    """
    if model is None:
        return Subject(small_model(), "Qwen3 class, random weights", VOCABULARY, _utf8)
    if is_missing_folder(model):
        raise DemoError(f"mlx-lm cannot load {model!r}: there is no such folder")
    try:
        loaded, tokenizer = mlx_lm.load(model)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DemoError(f"mlx-lm cannot load {model!r}: {lines[0]}") from error
    return Subject(loaded, model, int(tokenizer.vocab_size), lambda text: [*tokenizer.encode(text)])


def small_model() -> Any:
    """Return mlx-lm's Qwen3 in bfloat16, two key heads for four query heads; evaluated.

    Every process draws the same weights, so the model's fingerprint is the same in all of them.
    """
    model = qwen3.Model(qwen3.ModelArgs.from_dict(_SHAPE))
    keys = iter(mx.random.split(mx.random.key(SEED), 512))

    def draw(path: str, weight: Array) -> Array:
        if weight.ndim == 1:
            level = _HEAD_NORM if path.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
            return mx.full(weight.shape, level, dtype=mx.bfloat16)
        scale = 1.0 if "embed" in path else weight.shape[-1] ** -0.5
        scale *= _ATTENTION_SCALE if "o_proj" in path else 1.0
        return (mx.random.normal(weight.shape, key=next(keys)) * scale).astype(mx.bfloat16)

    model.update(tree_map_with_path(draw, model.parameters()))
    weights: Any = tree_flatten(model.parameters())
    evaluate([weight for _path, weight in weights])
    return model


def _utf8(text: str) -> list[int]:
    """The small model has no tokenizer: the bytes of the text are its tokens."""
    return list(text.encode())
