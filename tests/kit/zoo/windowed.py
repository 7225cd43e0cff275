"""Families that mix full attention with sliding windows or chunks."""

from typing import Any

import mlx.core as mx

from .family import DENSE, MOE, VOCAB, define

WINDOW = 64
SLIDING = "sliding_attention"
FULL = "full_attention"
MIXED: dict[str, Any] = {**DENSE, "num_hidden_layers": 3, "sliding_window": WINDOW}

define(
    "gemma3_text",
    {**MIXED, "num_hidden_layers": 4, "sliding_window_pattern": 3, "query_pre_attn_scalar": 16.0},
    dtype=mx.bfloat16,
    window=WINDOW,
    notes="windows in layers 0, 1, 3; layer 2 is full",
)
define(
    "gemma3n",
    {
        "text_config": {
            **DENSE,
            "model_type": "gemma3n_text",
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB,
            "sliding_window": WINDOW,
            "rope_local_base_freq": 10_000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
            "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 2,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 8,
        }
    },
    window=WINDOW,
    notes="4 caches for 6 layers: the last two read the caches of layers 2 and 3",
)
define(
    "gpt_oss",
    {
        **MIXED,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": [SLIDING, FULL],
    },
    window=WINDOW,
    notes="attention sinks are weights, not cache rows",
)
define(
    "cohere2",
    {**MIXED, "num_hidden_layers": 4, "sliding_window_pattern": 4, "logit_scale": 1.0},
    dtype=mx.bfloat16,
    window=WINDOW,
    notes="full layers have no rope",
)
define(
    "olmo3", {**MIXED, "layer_types": [SLIDING, FULL, SLIDING]}, dtype=mx.bfloat16, window=WINDOW
)
define(
    "iquestloopcoder",
    {**DENSE, "num_attention_heads": 2, "loop_num": 2, "loop_window_size": WINDOW},
    window=WINDOW,
    notes="4 caches for 2 layers: KV for loop 1, windows for loop 2",
)
define(
    "llama4",
    {
        "text_config": {
            **DENSE,
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "intermediate_size": 32,
            "intermediate_size_mlp": 128,
            "attention_bias": False,
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 2,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
            "floor_scale": 512,
        }
    },
    window=WINDOW,
    notes="three ChunkedKVCache layers, then one KVCache without rope",
)

ROPE = {"rope_theta": 10_000.0, "rope_type": "default"}
LAYERED = {**MIXED, "layer_types": [SLIDING, FULL, SLIDING]}

define("llama_sliding", LAYERED, module="llama", window=WINDOW)
define(
    "ministral3",
    {
        **LAYERED,
        "rope_parameters": {
            **ROPE,
            "type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 1_024,
        },
    },
    window=WINDOW,
    notes="queries scaled by position",
)
define("exaone4", {**MIXED, "sliding_window_pattern": "LLG", "rope_scaling": None}, window=WINDOW)
define("afmoe", {**LAYERED, **MOE, "num_dense_layers": 1}, window=WINDOW)
define(
    "exaone_moe",
    {**LAYERED, **MOE, "num_shared_experts": 1, "is_moe_layer": [False, True, True]},
    window=WINDOW,
)
define(
    "mellum",
    {**LAYERED, **MOE, "norm_topk_prob": True, "rope_parameters": {SLIDING: ROPE, FULL: ROPE}},
    window=WINDOW,
)
define(
    "laguna",
    {
        **LAYERED,
        **MOE,
        "num_attention_heads_per_layer": [4, 2, 4],
        "shared_expert_intermediate_size": 32,
        "rope_parameters": {SLIDING: ROPE, FULL: ROPE},
    },
    window=WINDOW,
    notes="query heads differ from layer to layer",
)
define("muse_glimmer", {**LAYERED, "output_multiplier": 1.0}, dtype=mx.bfloat16, window=WINDOW)
define("spark2_5", {**LAYERED, "rope_parameters": {SLIDING: ROPE, FULL: ROPE}}, window=WINDOW)
define(
    "plamo3",
    {**MIXED, "sliding_window_pattern": 3},
    window=WINDOW,
    notes="its mask is one token wider than its cache: results depend on where chunks end",
)
define(
    "gear",
    {**MIXED, "layer_types": [SLIDING, FULL, "conv_mixer"], "conv_L_cache": 3},
    window=WINDOW,
    notes="three groups in one model: window, paged, state",
)
define(
    "gemma4_text",
    {
        **DENSE,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 16,
        "sliding_window": WINDOW,
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
        "tie_word_embeddings": True,
    },
    window=WINDOW,
    notes="4 caches for 6 layers; full layers have other heads and sizes than windows",
)
define(
    "mimo_v2_flash",
    {
        **DENSE,
        "num_hidden_layers": 3,
        "hybrid_layer_pattern": [0, 1, 1],
        "moe_layer_freq": [0, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": WINDOW,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_shared_experts": None,
        "n_routed_experts": 4,
        "routed_scaling_factor": 1.0,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "layernorm_epsilon": 1e-5,
        "swa_rope_theta": 10_000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "v_head_dim": 8,
        "swa_head_dim": 16,
        "swa_v_head_dim": 8,
        "partial_rotary_factor": 0.5,
    },
    window=WINDOW,
    notes="values narrower than keys; windows have more key heads than full layers",
)
define(
    "step3p5",
    {
        **LAYERED,
        "num_attention_groups": 2,
        "attention_other_setting": {
            "num_attention_heads": 8,
            "num_attention_groups": 4,
        },
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "moe_intermediate_size": 32,
        "share_expert_dim": 32,
        "moe_layers_enum": "1,2",
    },
    window=WINDOW,
)
define(
    "muse_spark",
    {
        "text_config": {
            **LAYERED,
            "post_norm_eps": 1e-6,
            "rope_parameters": ROPE,
            "layer_rope_theta": [10_000.0, 0.0, 10_000.0],
            "final_logit_softcapping": 30.0,
            "output_multiplier": 1.0,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_hidden_size": 64,
            "moe_intermediate_size": 32,
        }
    },
    window=WINDOW,
    broken="RuntimeError: [metal_kernel] No Metal back-end. (normalises queries in a Metal kernel)",
)
# The wrappers that vision-language checkpoints are loaded with.
define(
    "gemma3",
    {
        "vocab_size": VOCAB,
        "text_config": {
            **MIXED,
            "model_type": "gemma3_text",
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 16.0,
        },
    },
    window=WINDOW,
)
define(
    "mistral3",
    {
        "text_config": {
            **LAYERED,
            "model_type": "ministral3",
            "rope_parameters": {
                **ROPE,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 1_024,
            },
        }
    },
    notes="the wrapper has no make_cache: plain KVCache for windowed layers too",
)
