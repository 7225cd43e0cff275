"""Bytes stored per token for models of real size, by the groups' own arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_cache.adapters.base import STATE, GroupSpec
from omlx_cache.commit.committer import StridePolicy
from omlx_cache.settings import CacheSettings
from omlx_cache.tools.size_trace import trace

CONTEXT = 32_768
BLOCK: int = CacheSettings.model_fields["block_size"].default
STRIDE: int = CacheSettings.model_fields["snapshot_stride"].default

# What the models' published config.json files say.
CONFIGS: dict[str, dict[str, Any]] = {
    "Gemma 3 27B": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "vocab_size": 262208,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16",
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "vocab_size": 201088,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "torch_dtype": "bfloat16",
    },
    "Qwen3-Next-80B-A3B": {
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 512,
        "moe_intermediate_size": 512,
        "mlp_only_layers": [],
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 262144,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "torch_dtype": "bfloat16",
    },
    "Llama 4 Scout": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_experts_per_tok": 1,
            "num_local_experts": 16,
            "interleave_moe_layer_step": 1,
            "vocab_size": 202048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_scaling": None,
            "max_position_embeddings": 10485760,
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "use_qk_norm": True,
        },
        "torch_dtype": "bfloat16",
    },
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes for a prompt of `CONTEXT` tokens.

    `stored`: every page that a commit makes. `needed`: the pages that a restore to the end reads,
    which outlive the others. `everything`: a copy of all that each layer holds, for every block.
    `snapshots` are part of `stored`.
    """

    model: str
    groups: Mapping[str, int]
    stored: int
    needed: int
    everything: int
    snapshots: int


def footprint(model: str) -> Footprint:
    """Compute one model's row."""
    sizes = {
        GroupSpec(group.kind, group.window): group.snapshot_bytes + sum(group.token_bytes["dense"])
        for group in trace(CONFIGS[model]).groups
    }
    captured = StridePolicy(STRIDE).positions(start=0, stop=CONTEXT, block_size=BLOCK, branch=None)
    stops = sorted({*captured, CONTEXT})
    stored = needed = everything = 0
    for group, size in sizes.items():
        if group.kind == "state":
            stored += size * len(stops)
            needed += size
            everything += size * (CONTEXT // BLOCK)
            continue
        kept = [CONTEXT] if group.kind == "paged" else stops
        stored += size * BLOCK * len(set().union(*(_blocks(group, stop) for stop in kept)))
        needed += size * BLOCK * len(_blocks(group, CONTEXT))
        everything += size * sum(_held(group, end) for end in range(BLOCK, CONTEXT + 1, BLOCK))
    named = {group.name: size for group, size in sizes.items()}
    return Footprint(model, named, stored, needed, everything, sizes.get(STATE, 0) * len(stops))


def _blocks(group: GroupSpec, position: int) -> set[int]:
    """Return the blocks that a restore to a position touches."""
    return {
        b
        for span in group.needs(position)
        for b in range(span.start // BLOCK, -(-span.stop // BLOCK))
    }


def _held(group: GroupSpec, end: int) -> int:
    """Return the tokens that a copy of a layer at the end of a block has: its own block's of a
    layer that keeps every token, the whole window of one that does not."""
    return BLOCK if group.kind == "paged" else min(group.window, end)
