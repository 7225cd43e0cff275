"""What demonstrations and measurements share: a small model, and settings that keep all of it."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models import qwen3

from omlx_cache.arrays.mlxio import Array, evaluate
from omlx_cache.settings import CacheSettings

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
"""Weight of the query and key norms, and factor on attention's output: attention picks single
tokens, so that one other token anywhere in the context changes the next ones."""


def small_model() -> Any:
    """Return mlx-lm's Qwen3 in bfloat16, evaluated. Every process draws the same weights, so the
    model's fingerprint is the same in all of them."""
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


def whole_settings(cold_dir: Path, nbytes: int, **changed: Any) -> CacheSettings:
    """Return settings that keep all of the KV, dense, in both tiers of `nbytes` and more, whatever
    the environment says. Raises ConfigError for a bad environment."""
    return CacheSettings(
        **{
            "cold_dir": cold_dir,
            "hot_bytes": nbytes,
            "queue_bytes": nbytes,
            "cold_bytes": 4 * nbytes,
            "min_free_bytes": 0,
            "hot_cache_only": False,
            "write_policy": "through",
            "codec": "dense",
            "worth_reading": "off",
            "socket": "off",
            **changed,
        }
    )
