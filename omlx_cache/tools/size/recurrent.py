"""The snapshots of recurrent and convolution layers, per sequence."""

from .config import Fields
from .leaves import Part, State

FLOAT32 = 4


def gated_delta(f: Fields) -> State:
    """Qwen3-Next and Qwen3.5: a convolution tail and one matrix per value head, in float32."""
    key_width = f.count("linear_num_key_heads") * f.count("linear_key_head_dim")
    heads, width = f.count("linear_num_value_heads"), f.count("linear_value_head_dim")
    tail = f.count("linear_conv_kernel_dim") - 1
    matrix = heads * width * f.count("linear_key_head_dim")
    return State((Part(tail * (2 * key_width + heads * width)), Part(matrix, FLOAT32)))


def gated_delta_split(f: Fields) -> State:
    """OLMo hybrid: as above, with one convolution tail each for queries, keys and values."""
    key_width = f.count("linear_num_key_heads") * f.count("linear_key_head_dim")
    heads, width = f.count("linear_num_value_heads"), f.count("linear_value_head_dim")
    tail = f.count("linear_conv_kernel_dim") - 1
    tails = (Part(tail * key_width), Part(tail * key_width), Part(tail * heads * width))
    return State((*tails, Part(heads * width * f.count("linear_key_head_dim"), FLOAT32)))


def kimi_delta(f: Fields) -> State:
    """Kimi linear attention: three convolution tails and one matrix per head."""
    linear = f.section("linear_attn_config")
    heads, width = linear.count("num_heads"), linear.count("head_dim")
    tail = (linear.count("short_conv_kernel_size") - 1) * heads * width
    return State((Part(tail), Part(tail), Part(tail), Part(heads * width * width, FLOAT32)))


def mamba2(inner: int, state: int, groups: int, kernel: int) -> State:
    """Mamba 2: a convolution tail, and a (heads, head_dim, state) tensor in float32."""
    return State((Part((kernel - 1) * (inner + 2 * groups * state)), Part(inner * state, FLOAT32)))


def mamba2_plain(f: Fields) -> State:
    heads = f.count("num_heads", "mamba_num_heads")
    return mamba2(
        heads * f.count("mamba_head_dim", "head_dim"),
        f.count("ssm_state_size", "state_size"),
        f.count("n_groups"),
        f.count("conv_kernel"),
    )


def mamba2_granite(f: Fields) -> State:
    heads = f.count("mamba_n_heads")
    return mamba2(
        heads * f.count("mamba_d_head"),
        f.count("mamba_d_state"),
        f.count("mamba_n_groups"),
        f.count("mamba_d_conv"),
    )


def mamba2_falcon(f: Fields) -> State:
    return mamba2(
        f.count("mamba_d_ssm"),
        f.count("mamba_d_state"),
        f.count("mamba_n_groups", default=1),
        f.count("mamba_d_conv"),
    )


def mamba1(inner: int, state: int, kernel: int) -> State:
    """Mamba 1: a convolution tail and (inner, state), both in the model's dtype."""
    return State((Part((kernel - 1) * inner), Part(inner * state)))


def short_convolution(f: Fields) -> State:
    """LFM2: the last inputs of a convolution."""
    return State((Part((f.count("conv_L_cache") - 1) * f.count("hidden_size")),))


def rwkv7(f: Fields) -> State:
    """RWKV 7: two token shifts and one matrix per head, in the model's dtype."""
    hidden, width = f.count("hidden_size"), f.count("head_dim")
    return State((Part(hidden), Part(hidden * width), Part(hidden)))


def gated_recurrence(f: Fields) -> State:
    """RecurrentGemma: a convolution tail and one vector."""
    width = f.count("hidden_size")
    return State((Part((f.count("conv1d_width") - 1) * width), Part(width)))


def linear_attention(f: Fields) -> State:
    """Bailing's linear attention: one matrix per head, in float32."""
    heads = f.count("num_attention_heads")
    width = f.count("head_dim", default=f.count("hidden_size") // heads)
    return State((Part(heads * width * width, FLOAT32),))


def bailing_delta(f: Fields) -> State:
    """Bailing v3: three convolution tails and one matrix per head."""
    heads = f.count("num_attention_heads")
    width = f.count("head_dim", default=f.count("hidden_size") // heads)
    tail = (f.count("short_conv_kernel_size", default=4) - 1) * heads * width
    return State((Part(tail), Part(tail), Part(tail), Part(heads * width * width, FLOAT32)))
