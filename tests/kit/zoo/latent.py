"""Multi-head latent attention: one key head, a latent as keys and the rope part as values."""

from typing import Any

from .registry import VOCAB, define

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
