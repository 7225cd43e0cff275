"""Families whose layers all keep every token in a plain KVCache."""

import mlx.core as mx

from .family import DENSE, MOE, define

GELU_NORM = {"layer_norm_eps": 1e-5, "attention_bias": False}

# Head size 64 so that mlx-lm's quantised caches (groups of 64) can hold it.
define(
    "llama",
    {**DENSE, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64},
    dtype=mx.bfloat16,
    notes="head size 64: usable with quantised caches",
)
define("qwen3", DENSE, dtype=mx.bfloat16)
define("qwen2", DENSE, dtype=mx.float16, notes="float16")
define(
    "qwen3_moe",
    {**DENSE, **MOE, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
)
define("mixtral", {**DENSE, "num_local_experts": 4, "num_experts_per_tok": 2})
define(
    "gemma2",
    {**DENSE, "query_pre_attn_scalar": 16.0},
    dtype=mx.bfloat16,
    notes="mlx-lm keeps every token in its windowed layers too",
)
define(
    "phi3",
    {**DENSE, "partial_rotary_factor": 0.5},
    dtype=mx.bfloat16,
    notes="query, key and value from one projection: keys are views of it",
)
define(
    "granite",
    {
        **DENSE,
        "logits_scaling": 1.0,
        "attention_multiplier": 0.25,
        "embedding_multiplier": 4.0,
        "residual_multiplier": 0.5,
        "attention_bias": False,
        "mlp_bias": False,
    },
)
define("olmo2", DENSE)
define("glm4", {**DENSE, "attention_bias": False, "partial_rotary_factor": 0.5})
define("cohere", {**DENSE, **GELU_NORM, "logit_scale": 1.0})
define("stablelm", {**DENSE, **GELU_NORM, "use_qkv_bias": False, "partial_rotary_factor": 0.5})
define("gpt_neox", {**DENSE, **GELU_NORM, "rotary_emb_base": 10_000, "rotary_pct": 0.5})
define(
    "gpt2",
    {
        "n_ctx": 4_096,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 4_096,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": DENSE["vocab_size"],
    },
    max_context=4_096,
    notes="learned positions: the position comes from the cache's offset alone",
)
define(
    "openelm",
    {
        "head_dim": 16,
        "num_transformer_layers": 3,
        "model_dim": 64,
        "vocab_size": DENSE["vocab_size"],
        "ffn_dim_divisor": 16,
        "num_query_heads": [2, 4, 4],
        "num_kv_heads": [1, 1, 2],
        "ffn_multipliers": [1.0, 1.5, 2.0],
    },
    notes="key heads differ from layer to layer",
)
define(
    "hunyuan",
    {
        **DENSE,
        "num_hidden_layers": 4,
        "attention_bias": False,
        "moe_topk": 2,
        "num_experts": 4,
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "use_cla": True,
        "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "alpha": 1.0, "factor": 1.0},
    },
    notes="layers 1 and 3 borrow the keys of 0 and 2, and their caches store them a second time",
)
define(
    "afm7",
    {
        "vocab_size": DENSE["vocab_size"],
        "hidden_dim": 64,
        "num_layers": 4,
        "num_kv_reuse_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
    },
    notes="2 caches for 4 layers",
)
define("nanbeige", {**DENSE, "num_loops": 2}, notes="4 caches for 2 layers, run twice")
define(
    "nemotron-nas",
    {
        **DENSE,
        "num_hidden_layers": 3,
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 2.0}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.0}},
        ],
    },
    notes="2 caches for 3 layers; key heads differ",
)
SCALES = {"dim_model_base": 64, "scale_depth": 1.4, "scale_emb": 4.0}
GRANITE = {
    "logits_scaling": 1.0,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 4.0,
    "residual_multiplier": 0.5,
    "attention_bias": False,
}
SHARED_MOE = {
    **MOE,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}

define("gemma", DENSE)
define("phi", {**DENSE, "num_key_value_heads": 4})
define("starcoder2", DENSE)
define("minicpm", {**DENSE, **SCALES})
define("qwen2_moe", {**DENSE, **MOE, "shared_expert_intermediate_size": 32})
define("olmoe", {**DENSE, **MOE})
define("granitemoe", {**DENSE, **GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2})
define(
    "glm4_moe",
    {
        **DENSE,
        **SHARED_MOE,
        "use_qk_norm": True,
        "attention_bias": False,
        "partial_rotary_factor": 0.5,
        "rope_scaling": None,
    },
)
define("dots1", {**DENSE, **SHARED_MOE})
define("deepseek", {**DENSE, **SHARED_MOE})
define("seed_oss", DENSE)
define("smollm3", {**DENSE, "no_rope_layer_interval": 2})
define("ernie4_5", {**DENSE, "use_bias": False})
define("exaone", {**DENSE, "num_layers": 2, "layer_norm_epsilon": 1e-5})
define("helium", {**DENSE, "attention_bias": False, "mlp_bias": False})
define(
    "hunyuan_v1_dense", {**DENSE, "rope_scaling": {"type": "dynamic", "alpha": 1.0, "factor": 1.0}}
)
define(
    "minimax",
    {
        **DENSE,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rotary_dim": 8,
        "shared_intermediate_size": 32,
    },
)
define("nanochat", {**DENSE, "num_key_value_heads": 4})
define(
    "apertus",
    {**DENSE, "attention_bias": False, "mlp_bias": False, "post_norm": False, "qk_norm": True},
)
define("talkie", DENSE)
