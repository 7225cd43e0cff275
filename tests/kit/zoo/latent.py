"""Latent attention (one key head, a latent as keys and the rope part as values), and families with
a CacheList or a private class per layer."""

from typing import Any

import mlx.core as mx

from .family import DENSE, VOCAB, define

MLA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
}

define("deepseek_v3", MLA, notes="MLA: 1 head, keys 32 wide, values 8 wide")

define(
    "deepseek_v2",
    {
        **MLA,
        "topk_method": "greedy",
        "routed_scaling_factor": 1.0,
        "rope_scaling": {"factor": 1.0, "mscale": 1.0},
    },
    notes="full keys and values of different width, not a latent",
)
define("kimi_vl", {"text_config": MLA})
define("youtu_llm", MLA)
define(
    "glm4_moe_lite",
    {
        **MLA,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "partial_rotary_factor": 1.0,
    },
)
define(
    "mistral4",
    {
        **MLA,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
        "rope_parameters": {
            "rope_theta": 10_000.0,
            "type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 1_024,
        },
    },
)
define(
    "minicpm3",
    {
        **MLA,
        "dim_model_base": 64,
        "scale_depth": 1.4,
        "scale_emb": 4.0,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0] * 4,
            "short_factor": [1.0] * 4,
            "original_max_position_embeddings": 32_768,
        },
    },
    notes="full keys and values of different width, not a latent",
)


INDEXED = {**MLA, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 48}

define(
    "deepseek_v32",
    INDEXED,
    notes="CacheList(KV, KV): latent and indexer; indexer values are zeros as wide as its keys",
)

define(
    "glm_moe_dsa",
    {
        **INDEXED,
        "routed_scaling_factor": 1.0,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "attention_bias": False,
        "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
    },
)

LONGCAT: dict[str, Any] = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "moe_topk": 2,
    "expert_ffn_hidden_size": 32,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "num_layers": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "routed_scaling_factor": 1.0,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "attention_bias": False,
}

define("longcat_flash", LONGCAT, notes="CacheList(KV, KV): two attentions per layer")
define(
    "longcat_flash_ngram",
    {**LONGCAT, "ngram_vocab_size_ratio": 2, "emb_neighbor_num": 3, "emb_split_num": 2},
    notes="first cache holds the last 2 token ids as int64",
)
define(
    "falcon_h1",
    {
        "model_type": "falcon_h1",
        "hidden_size": 64,
        "intermediate_size": 128,
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "mamba_d_ssm": 64,
        "mamba_d_head": 16,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "vocab_size": VOCAB,
        "attention_out_multiplier": 1.0,
        "lm_head_multiplier": 4.0,
        "ssm_out_multiplier": 1.0,
    },
    dtype=mx.bfloat16,
    notes="CacheList(Arrays, KV)",
)
define(
    "baichuan_m1",
    {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_theta": 10_000.0,
        "sliding_window": 64,
        "sliding_window_layers": [0, 2],
        "conv_window": 2,
        "rms_norm_eps": 1e-5,
        "num_swa_attention_heads": 4,
        "num_swa_key_value_heads": 1,
    },
    dtype=mx.bfloat16,
    window=64,
    notes="CacheList(Arrays, Rotating or KV); state is the last raw key and value",
)
define(
    "minimax_m3_vl",
    {
        "text_config": {
            **DENSE,
            "num_hidden_layers": 3,
            "intermediate_size": 32,
            "dense_intermediate_size": 128,
            "shared_intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "sparse_attention_freq": [0, 1, 1],
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 16,
            "index_topk_blocks": 6,
        }
    },
    notes="CacheList(KV) and CacheList(KV, KV); indexer values are zero wide",
)
define(
    "deepseek_v41",
    {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "head_dim": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "o_groups": 2,
        "o_lora_rank": 16,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-6,
        "sliding_window": 64,
        "compress_ratios": [0, 1, 8, 4, 4, 4],
        "kv_source_layer_ids": [1, 2, 3],
        "index_source_layer_ids": [1, 2, 3, 4],
        "index_n_heads": 2,
        "index_head_dim": 32,
        "index_topk": 8,
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 4,
        "candidate_block_size": 2,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 3,
        "max_position_embeddings": 32_768,
    },
    window=64,
    notes="private LayerCache: a window, pooled rows, and the rows of the open group",
)
