"""Families that mix full attention with sliding windows or chunks, by mlx-lm's model type."""

from .attention import (
    by_layer_types,
    every_nth_is_full,
    grouped,
    is_sliding,
    layer_count,
    windowed,
)
from .config import Fields
from .leaves import Attention, Leaf, Part, State


def by_types(f: Fields) -> list[Leaf]:
    """`layer_types` says which layers slide; without it none does."""
    kinds = f.items("layer_types") or ["full"] * layer_count(f)
    return by_layer_types(f, kinds, f.count("sliding_window", default=0))


def by_types_alternating(f: Fields) -> list[Leaf]:
    kinds = f.items("layer_types") or ["sliding", "full"] * (layer_count(f) // 2)
    return by_layer_types(f, kinds, f.count("sliding_window", default=128))


def by_types_every_fourth(f: Fields) -> list[Leaf]:
    kinds = f.items("layer_types") or every_nth_is_full(layer_count(f), 4)
    return by_layer_types(f, kinds, f.count("sliding_window"))


def by_pattern(default_pattern: int, default_window: int, f: Fields) -> list[Leaf]:
    pattern = f.count("sliding_window_pattern", default=default_pattern)
    kinds = every_nth_is_full(layer_count(f), pattern)
    window = f.count("sliding_window", "window_size", default=default_window)
    return by_layer_types(f, kinds, window)


def gemma3(f: Fields) -> list[Leaf]:
    return by_pattern(6, 512, f)


def cohere2(f: Fields) -> list[Leaf]:
    return by_pattern(4, 4096, f)


def plamo3(f: Fields) -> list[Leaf]:
    return by_pattern(8, 2048, f)


def exaone4(f: Fields) -> list[Leaf]:
    pattern = f.text("sliding_window_pattern")
    kinds = [
        "sliding" if pattern and pattern[layer % len(pattern)] == "L" else "full"
        for layer in range(layer_count(f))
    ]
    return by_layer_types(f, kinds, f.count("sliding_window", default=0))


def gemma3n(f: Fields) -> list[Leaf]:
    """The last `num_kv_shared_layers` layers read the caches of earlier ones."""
    kinds = f.items("layer_types")[: layer_count(f) - f.count("num_kv_shared_layers", default=0)]
    return by_layer_types(f, kinds, f.count("sliding_window"))


def gemma4(f: Fields) -> list[Leaf]:
    """As gemma3n; full layers have heads and sizes of their own."""
    own = layer_count(f) - f.count("num_kv_shared_layers", default=20)
    pattern = f.count("sliding_window_pattern", default=5)
    kinds = f.items("layer_types") or every_nth_is_full(layer_count(f), pattern)
    sliding = windowed(grouped(f), f.count("sliding_window", default=512))
    width = f.count("global_head_dim", default=512)
    heads = sliding.heads
    if f.flag("attention_k_eq_v"):
        heads = f.count("num_global_key_value_heads", default=heads)
    whole = Attention(heads, width, width)
    return [sliding if is_sliding(kind) else whole for kind in kinds[:own]]


def mimo(f: Fields) -> list[Leaf]:
    """Values narrower than keys; windows with heads of their own."""
    whole = Attention(f.count("num_key_value_heads"), f.count("head_dim"), f.count("v_head_dim"))
    sliding = Attention(
        f.count("swa_num_key_value_heads"),
        f.count("swa_head_dim"),
        f.count("swa_v_head_dim"),
        f.count("sliding_window_size"),
    )
    return [sliding if slides else whole for slides in f.items("hybrid_layer_pattern")]


def step3p5(f: Fields) -> list[Leaf]:
    """Windows with a number of key heads of their own."""
    kinds = f.items("layer_types") or ["sliding", "full"] * (layer_count(f) // 2)
    other = f.section("attention_other_setting")
    groups = f.count("num_attention_groups")
    whole = grouped(f, groups)
    sliding = windowed(
        grouped(f, other.count("num_attention_groups", default=groups)), f.count("sliding_window")
    )
    return [sliding if is_sliding(kind) else whole for kind in kinds]


def llama4(f: Fields) -> list[Leaf]:
    """Three chunked layers, then a full one."""
    chunked = windowed(grouped(f), f.count("attention_chunk_size", default=8192), chunk=True)
    kinds = every_nth_is_full(layer_count(f), 4)
    return [grouped(f) if kind == "full" else chunked for kind in kinds]


def looped(f: Fields) -> list[Leaf]:
    """IQuest-Loop-Coder: full attention in the first pass, windows in the second."""
    count, leaf = layer_count(f), grouped(f)
    later = windowed(leaf, f.count("loop_window_size", default=64))
    return [*[leaf] * count, *[later] * count]


def gear(f: Fields) -> list[Leaf]:
    """Windows, full attention, and convolutions over keys and values."""
    leaf = grouped(f)
    tail = Part((f.count("conv_L_cache") - 1) * leaf.heads * leaf.key_dim)
    state = State((tail, tail))
    sliding = windowed(leaf, f.count("sliding_window"))
    by_kind: dict[object, Leaf] = {"full_attention": leaf, "sliding_attention": sliding}
    return [by_kind.get(kind, state) for kind in f.items("layer_types")]


def baichuan(f: Fields) -> list[Leaf]:
    """Every layer has the last raw key and value beside its window or its full attention."""
    sliding = set(f.items("sliding_window_layers"))
    whole = grouped(f)
    narrow = grouped(f, f.count("num_swa_key_value_heads", default=whole.heads))
    width = f.count("hidden_size") // f.count("num_swa_attention_heads", "num_attention_heads")
    window = f.count("sliding_window")
    swa = Attention(narrow.heads, width, width, window)
    leaves: list[Leaf] = []
    for layer in range(layer_count(f)):
        leaf = swa if layer in sliding else whole
        raw = State((Part(leaf.heads * leaf.key_dim), Part(leaf.heads * leaf.value_dim)))
        leaves += [raw, leaf]
    return leaves
