"""Families with recurrent or convolution state, alone or mixed with attention."""

from typing import Any

import mlx.core as mx

from .family import DENSE, MOE, VOCAB, define

GATED_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}

define(
    "qwen3_next",
    {
        **DENSE,
        **GATED_DELTA,
        **MOE,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "partial_rotary_factor": 0.5,
    },
    notes="gated delta net and attention in turn",
)
define(
    "qwen3_5",
    {
        "text_config": {
            **DENSE,
            **GATED_DELTA,
            "model_type": "qwen3_5_text",
            "rope_parameters": {
                "type": "default",
                "mrope_section": [1, 1, 0],
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.25,
            },
        }
    },
    dtype=mx.bfloat16,
    notes="recurrent state is float32 in this bf16 model",
)
define(
    "jamba",
    {
        **DENSE,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 8,
        "mamba_expand": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
)
define(
    "lfm2",
    {
        **DENSE,
        "num_hidden_layers": 3,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1],
    },
    dtype=mx.bfloat16,
    notes="state is a convolution tail of 2 tokens",
)
MAMBA2_SIZES: dict[str, Any] = {
    "conv_kernel": 4,
    "n_groups": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "layer_norm_epsilon": 1e-5,
    "ssm_state_size": 16,
}
define(
    "nemotron_h",
    {
        **DENSE,
        **MAMBA2_SIZES,
        "hybrid_override_pattern": ["M", "*", "-", "M", "E"],
        "attention_bias": False,
        "mlp_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    },
    notes="3 caches for 5 layers: MLP and MoE layers have none",
)
define(
    "kimi_linear",
    {
        **DENSE,
        "num_hidden_layers": 3,
        "linear_attn_config": {
            "num_heads": 2,
            "head_dim": 16,
            "short_conv_kernel_size": 4,
            "kda_layers": [1, 3],
            "full_attn_layers": [2],
        },
        "model_max_length": 32_768,
        **MOE,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "mla_use_nope": True,
    },
    notes="four arrays per recurrent layer, and MLA",
)
define(
    "mamba2",
    {
        **MAMBA2_SIZES,
        "num_heads": 4,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 64,
        "state_size": 16,
        "num_hidden_layers": 2,
        "tie_word_embeddings": False,
        "time_step_limit": (0.0, float("inf")),
        "time_step_rank": "auto",
    },
    dtype=mx.bfloat16,
    notes="recurrent state only: no layer is indexed by token",
)
define(
    "rwkv7",
    {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "norm_eps": 1e-5,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
    notes="three arrays per layer; one Python step per token on the CPU",
)
define(
    "recurrent_gemma",
    {
        **DENSE,
        "num_hidden_layers": 3,
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "num_key_value_heads": 1,
        "attention_window_size": 64,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    window=64,
    notes="no layer keeps all tokens",
)
define(
    "granitemoehybrid",
    {
        **DENSE,
        "layer_types": ["mamba", "attention"],
        "attention_bias": False,
        "embedding_multiplier": 4.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 0.5,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_proj_bias": False,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
    },
)
define(
    "olmo_hybrid",
    {
        **DENSE,
        **GATED_DELTA,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_allow_neg_eigval": True,
        "attention_bias": False,
        "linear_num_key_heads": 2,
    },
    dtype=mx.bfloat16,
    notes="four arrays per recurrent layer",
)
define(
    "plamo2",
    {
        **DENSE,
        "hidden_size_per_head": 16,
        "full_attention_idx": [1],
        "mamba_d_state": 16,
        "mamba_num_heads": 4,
        "mamba_step": 2,
    },
)
LINEAR_MOE: dict[str, Any] = {
    **DENSE,
    **MOE,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "layer_group_size": 2,
    "group_norm_size": 2,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
define(
    "bailing_hybrid",
    {**LINEAR_MOE, "num_key_value_heads": 4},
    notes="one array per recurrent layer, and MLA",
)
define("bailing_moe_linear", {**LINEAR_MOE, "use_qk_norm": True, "score_function": "sigmoid"})
define(
    "bailing_moe_v3",
    {**LINEAR_MOE, "moe_shared_expert_intermediate_size": 32, "tie_word_embeddings": False},
    notes="four arrays per recurrent layer, and MLA",
)
define(
    "lfm2_moe",
    {
        **DENSE,
        **MOE,
        "num_hidden_layers": 3,
        "norm_topk_prob": True,
        "use_expert_bias": True,
        "num_dense_layers": 1,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "full_attn_idxs": [1],
    },
)
define(
    "mamba",
    {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 8,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
    notes="recurrent state only",
)
define(
    "kimi_k3",
    {
        "text_config": {
            **DENSE,
            **MOE,
            "model_type": "kimi_linear",
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "linear_attn_config": {
                "num_heads": 2,
                "head_dim": 16,
                "short_conv_kernel_size": 4,
                "kda_layers": [1, 2, 3],
                "full_attn_layers": [4],
            },
            "activation_situ_beta": 4.0,
            "activation_situ_linear_beta": 4.0,
            "attn_res_block_size": 2,
            "num_experts_per_token": 2,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "mla_use_output_gate": True,
        }
    },
)
define(
    "lfm2-vl",
    {
        "text_config": {
            **DENSE,
            "model_type": "lfm2",
            "norm_eps": 1e-5,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_dim": 64,
            "block_ff_dim": 128,
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "full_attn_idxs": [1],
        }
    },
    notes="the wrapper of vision-language checkpoints",
)
