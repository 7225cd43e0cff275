"""Families with recurrent or convolution state, by mlx-lm's model type."""

from collections.abc import Callable

from . import recurrent
from .attention import full, grouped, layer_count, windowed
from .config import Fields
from .leaves import Attention, Leaf, State


def mixed(linear: list[bool], state: State, attention: Attention) -> list[Leaf]:
    return [state if is_linear else attention for is_linear in linear]


def qwen3_next(f: Fields) -> list[Leaf]:
    interval = f.count("full_attention_interval", default=4)
    linear = [(layer + 1) % interval != 0 for layer in range(layer_count(f))]
    return mixed(linear, recurrent.gated_delta(f), grouped(f))


def olmo_hybrid(f: Fields) -> list[Leaf]:
    linear = [kind == "linear_attention" for kind in f.items("layer_types")]
    return mixed(linear, recurrent.gated_delta_split(f), grouped(f))


def jamba(f: Fields) -> list[Leaf]:
    period, offset = (
        f.count("attn_layer_period", default=8),
        f.count("attn_layer_offset", default=4),
    )
    kinds = f.items("layers_block_type") or [
        "attention" if layer % period == offset else "mamba" for layer in range(layer_count(f))
    ]
    inner = f.count("mamba_expand") * f.count("hidden_size")
    state = recurrent.mamba1(inner, f.count("mamba_d_state"), f.count("mamba_d_conv"))
    return mixed([kind == "mamba" for kind in kinds], state, grouped(f))


def lfm2(f: Fields) -> list[Leaf]:
    kinds = f.items("layer_types")
    whole = f.items("full_attn_idxs") or [
        layer for layer, kind in enumerate(kinds) if kind == "full_attention"
    ]
    linear = [layer not in whole for layer in range(layer_count(f))]
    return mixed(linear, recurrent.short_convolution(f), grouped(f))


_NEMOTRON_KINDS = {
    "full_attention": "*",
    "attention": "*",
    "linear_attention": "M",
    "mamba": "M",
    "conv": "M",
}


def nemotron_h(f: Fields) -> list[Leaf]:
    """MLP and MoE blocks have no cache."""
    pattern = f.items("hybrid_override_pattern")
    if not pattern:
        kinds = f.items("layers_block_type") or f.items("layer_types")
        pattern = [_NEMOTRON_KINDS.get(kind, "-") for kind in kinds]
    linear = [kind == "M" for kind in pattern if kind in ("M", "*")]
    return mixed(linear, recurrent.mamba2_plain(f), grouped(f))


def kimi_linear(f: Fields) -> list[Leaf]:
    layers = set(f.section("linear_attn_config").items("kda_layers"))
    linear = [layer + 1 in layers for layer in range(layer_count(f))]
    return mixed(linear, recurrent.kimi_delta(f), full(f, "kimi_linear"))


def granite_hybrid(f: Fields) -> list[Leaf]:
    kinds = f.items("layer_types")
    if "mamba" not in kinds:
        return [grouped(f)] * layer_count(f)
    return mixed([kind == "mamba" for kind in kinds], recurrent.mamba2_granite(f), grouped(f))


def plamo2(f: Fields) -> list[Leaf]:
    count, step = layer_count(f), f.count("mamba_step", default=2)
    if count <= step // 2:
        linear = [layer != count - 1 for layer in range(count)]
    else:
        linear = [layer % step != step // 2 for layer in range(count)]
    heads, width = (
        f.count("mamba_num_heads", default=64),
        f.count("hidden_size_per_head", default=128),
    )
    # Its convolution runs over the inner width alone.
    state = recurrent.mamba2(
        heads * width, f.count("mamba_d_state", default=64), 0, f.count("mamba_d_conv", default=4)
    )
    return mixed(linear, state, grouped(f))


def falcon_h1(f: Fields) -> list[Leaf]:
    """Both kinds side by side in every layer."""
    return [recurrent.mamba2_falcon(f), grouped(f)] * layer_count(f)


def recurrent_gemma(f: Fields) -> list[Leaf]:
    attention = windowed(grouped(f), f.count("attention_window_size"))
    kinds = f.items("block_types") or f.items("_block_types")
    linear = [kinds[layer % len(kinds)] == "recurrent" for layer in range(layer_count(f))]
    return mixed(linear, recurrent.gated_recurrence(f), attention)


def bailing(state: Callable[[Fields], State], latent: bool, f: Fields) -> list[Leaf]:
    count, group = layer_count(f), f.count("layer_group_size")
    whole_groups = count // group * group
    linear = [(layer + 1) % group != 0 and layer < whole_groups for layer in range(count)]
    return mixed(linear, state(f), full(f, "bailing") if latent else grouped(f))


def bailing_hybrid(f: Fields) -> list[Leaf]:
    return bailing(recurrent.linear_attention, True, f)


def bailing_moe_linear(f: Fields) -> list[Leaf]:
    return bailing(recurrent.linear_attention, False, f)


def bailing_moe_v3(f: Fields) -> list[Leaf]:
    return bailing(recurrent.bailing_delta, True, f)


def mamba(f: Fields) -> list[Leaf]:
    state = recurrent.mamba1(
        f.count("intermediate_size", "d_inner"),
        f.count("state_size", "d_state"),
        f.count("conv_kernel", "d_conv"),
    )
    return [state] * layer_count(f)


def mamba2(f: Fields) -> list[Leaf]:
    return [recurrent.mamba2_plain(f)] * layer_count(f)


def rwkv7(f: Fields) -> list[Leaf]:
    return [recurrent.rwkv7(f)] * layer_count(f)
