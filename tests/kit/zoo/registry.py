"""The families by name, and the way to declare one."""

import copy
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from kit.versions import has_model

from .family import Family, build_model

FAMILIES: dict[str, Family] = {}

VOCAB = 256

# A transformer of the usual shape: two query heads share each key head.
DENSE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32_768,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}

MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def define(
    name: str,
    config: Mapping[str, Any],
    *,
    module: str = "",
    dtype: mx.Dtype = mx.float32,
    **fields: Any,
) -> None:
    """Register a family; `module` is the mlx-lm model file when the name is not it."""
    source = module or name
    if not has_model(source):
        return
    settings = {"model_type": source, **config}

    def build(seed: int) -> nn.Module:
        # Some argument classes edit the nested dictionaries that they are given.
        return build_model(source, copy.deepcopy(settings), dtype, seed)

    if name in FAMILIES:
        raise ValueError(f"family {name} is declared twice")
    FAMILIES[name] = Family(
        name=name, build=build, vocab=VOCAB, dtype=dtype, config=settings, **fields
    )
