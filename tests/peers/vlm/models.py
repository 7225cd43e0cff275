"""Real models of mlx-vlm at a very small size, with weights drawn from a seed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

VOCAB, IMAGE_TOKEN, IMAGE_TOKENS = 128, 127, 4
DENSE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
}
MIXED_WINDOWS = {
    **DENSE,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 48,
}
HYBRID: dict[str, Any] = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
IMAGES: dict[str, Any] = {
    "model_type": "llava",
    "image_token_index": IMAGE_TOKEN,
    "vocab_size": VOCAB,
    "vision_feature_layer": -1,
    "text_config": {**DENSE, "tie_word_embeddings": False},
    "vision_config": {
        "model_type": "clip_vision_model",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
        "projection_dim": 32,
        "vocab_size": VOCAB,
    },
}
IMAGES["text_config"].pop("head_dim")
MROPE: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": IMAGE_TOKEN - 1,
    "vision_start_token_id": IMAGE_TOKEN - 2,
    "vision_config": {
        "model_type": "qwen2_vl",
        "depth": 1,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_patch_size": 4,
    },
}
LARGER = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
BENCHED = {"head_dim": 64, "num_hidden_layers": 4, "num_key_value_heads": 2, **LARGER}
CONFIGS = {
    "benched dense": {**DENSE, **BENCHED},
    "benched hybrid": {**HYBRID, **BENCHED},
    "dense": DENSE,
    "windows": MIXED_WINDOWS,
    "hybrid": HYBRID,
    "images": IMAGES,
    "mrope": MROPE,
}


def build(name: str, seed: int = 0) -> Any:
    """Return a model whose weights depend on the seed only; evaluated."""
    config = dict(CONFIGS[name])
    module = import_module(f"mlx_vlm.models.{config['model_type']}")
    arguments = module.ModelConfig.from_dict(config)
    for part in ("text_config", "vision_config"):
        if part in config:
            kind = getattr(module, "".join(p.title() for p in part.split("_")))
            setattr(arguments, part, kind.from_dict(config[part]))
    mx.random.seed(seed)
    model = module.Model(arguments)
    drawn = [
        (path, array if array.ndim < 2 else mx.random.normal(array.shape) * 0.3)
        for path, array in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(drawn))
    mx.eval(model.parameters())
    return model
