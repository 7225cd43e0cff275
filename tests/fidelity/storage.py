"""Bytes stored per token for models of real size, by the groups' own arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_cache.adapters.base import PAGED, STATE, GroupSpec
from omlx_cache.commit.snapshots import StridePolicy
from omlx_cache.settings import CacheSettings
from omlx_cache.tools.size import Attention, State, layout_of

CONTEXT = 32_768
BLOCK: int = CacheSettings.model_fields["block_size"].default
STRIDE: int = CacheSettings.model_fields["snapshot_stride"].default

# What the models' published config.json files say.
CONFIGS: dict[str, dict[str, Any]] = {
    "Gemma 3 27B": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
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
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_chunk_size": 8192,
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
    layout = layout_of(CONFIGS[model])
    sizes: dict[GroupSpec, int] = {}
    for leaf in layout.leaves:
        group = _group(leaf)
        size = _size(leaf, layout.itemsize)
        sizes[group] = sizes.get(group, 0) + size
    captured = StridePolicy(STRIDE).positions(start=0, stop=CONTEXT, block_size=BLOCK, branch=None)
    snapshots = len({*captured, CONTEXT})
    stored = needed = everything = 0
    for group, size in sizes.items():
        if group.kind == "state":
            stored += size * snapshots
            needed += size
            everything += size * (CONTEXT // BLOCK)
            continue
        stored += size * CONTEXT // BLOCK * _page_tokens(group)
        needed += size * _paged_tokens(group)
        everything += size * sum(_held(group, end) for end in range(BLOCK, CONTEXT + 1, BLOCK))
    named = {group.name: size for group, size in sizes.items()}
    return Footprint(model, named, stored, needed, everything, sizes.get(STATE, 0) * snapshots)


def _group(leaf: Attention | State) -> GroupSpec:
    if isinstance(leaf, State):
        return STATE
    return GroupSpec("window", leaf.window) if leaf.window else PAGED


def _size(leaf: Attention | State, itemsize: int) -> int:
    """Return the bytes of a token, or of a snapshot."""
    if isinstance(leaf, State):
        return leaf.size(itemsize)
    return leaf.heads * (leaf.key_dim + leaf.value_dim) * itemsize


def _page_tokens(group: GroupSpec) -> int:
    """Return the tokens in a block's page: of a window shorter than the block, one more than it."""
    return BLOCK if group.kind == "paged" else min(BLOCK, group.window + 1)


def _paged_tokens(group: GroupSpec) -> int:
    """Return the tokens in the pages that a restore to the end of the context touches."""
    blocks = sum(-(-span.stop // BLOCK) - span.start // BLOCK for span in group.needs(CONTEXT))
    return blocks * _page_tokens(group)


def _held(group: GroupSpec, end: int) -> int:
    """Return the tokens that a copy of a layer at the end of a block has: its own block's of a
    layer that keeps every token, the whole window of one that does not."""
    return BLOCK if group.kind == "paged" else min(group.window, end)
