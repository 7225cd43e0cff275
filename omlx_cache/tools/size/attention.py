"""The keys and values of attention layers: grouped-query and latent, full and windowed."""

from collections.abc import Sequence

from .config import Fields
from .errors import SizingError
from .leaves import Attention, Leaf

# Models with kv_lora_rank whose caches hold full keys and values all the same.
_EXPANDED = frozenset({"deepseek_v2", "youtu_llm", "minicpm3"})
_SLIDING = frozenset({"sliding_attention", "sliding"})


def layer_count(f: Fields) -> int:
    return f.count(
        "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"
    )


def grouped(f: Fields, heads: int | None = None) -> Attention:
    """Grouped-query attention, which with as many key heads as heads is the multi-head kind."""
    queries = f.count("num_attention_heads", "n_head", "num_heads", "n_heads")
    hidden = f.count("hidden_size", "n_embd", "hidden_dim", "model_dim", "d_model")
    if heads is None:
        heads = f.count("num_key_value_heads", "num_kv_heads", "n_kv_heads", default=queries)
    if queries == 0:
        raise SizingError("num_attention_heads is 0")
    width = f.count("head_dim", "hidden_size_per_head", default=hidden // queries)
    return Attention(heads, width, width)


def full(f: Fields, model_type: str) -> Attention:
    """The model's full-attention layer: latent where the cache holds the latent."""
    if "kv_lora_rank" not in f:
        return grouped(f)
    rope = f.count("qk_rope_head_dim")
    if model_type not in _EXPANDED:
        return Attention(1, f.count("kv_lora_rank"), rope)
    heads = f.count("num_attention_heads")
    values = f.count("v_head_dim", default=f.count("hidden_size") // heads)
    if model_type == "minicpm3":
        values = f.count("hidden_size") // heads
    return Attention(heads, f.count("qk_nope_head_dim") + rope, values)


def windowed(leaf: Attention, window: int, *, chunk: bool = False) -> Attention:
    if window < 1:
        raise SizingError("a windowed layer has no window size")
    return Attention(leaf.heads, leaf.key_dim, leaf.value_dim, window, chunk)


def is_sliding(kind: object) -> bool:
    return kind in _SLIDING


def by_layer_types(f: Fields, kinds: Sequence[object], window: int) -> list[Leaf]:
    """Return one cache per layer: a window where the layer slides, else all tokens."""
    leaf = grouped(f)
    return [windowed(leaf, window) if is_sliding(kind) else leaf for kind in kinds]


def every_nth_is_full(count: int, pattern: int) -> list[str]:
    return ["full" if (layer + 1) % pattern == 0 else "sliding" for layer in range(count)]
