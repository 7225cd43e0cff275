"""From a configuration to the caches that mlx-lm makes for the model."""

from collections.abc import Callable

from . import hybrid_families as hybrid
from . import windowed_families as windowed
from .attention import full, grouped, layer_count
from .config import Config, Fields, text_config
from .errors import SizingError
from .leaves import Attention, Leaf, ModelLayout, Part, State

Layout = Callable[[Fields], list[Leaf]]

_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


def indexed(f: Fields) -> list[Leaf]:
    """DeepSeek sparse attention: the latent, and the indexer's keys with values as wide."""
    width = f.count("index_head_dim")
    return [full(f, "deepseek_v32"), Attention(1, width, width)] * layer_count(f)


def minimax_m3(f: Fields) -> list[Leaf]:
    """Sparse layers have indexer keys too, without values."""
    indexer, leaves = Attention(1, f.count("index_head_dim"), 0), []
    for sparse in f.items("sparse_attention_freq") or [0] * layer_count(f):
        leaves += [grouped(f), indexer] if sparse else [grouped(f)]
    return list[Leaf](leaves)


def twice(f: Fields) -> list[Leaf]:
    return [full(f, "longcat_flash")] * (2 * layer_count(f))


def longcat_ngram(f: Fields) -> list[Leaf]:
    ids = f.count("emb_neighbor_num") - 1
    return [State((Part(ids, 8),)), *twice(f)]


def nanbeige(f: Fields) -> list[Leaf]:
    return [grouped(f)] * (layer_count(f) * f.count("num_loops", default=1))


def openelm(f: Fields) -> list[Leaf]:
    width = f.count("head_dim")
    return [Attention(heads, width, width) for heads in f.items("num_kv_heads")]


def reused(f: Fields) -> list[Leaf]:
    """AFM: the last layers read the caches of earlier ones."""
    return [grouped(f)] * (layer_count(f) - f.count("num_kv_reuse_layers", default=0))


def nemotron_nas(f: Fields) -> list[Leaf]:
    leaves: list[Leaf] = []
    for block in f.items("block_configs"):
        attention = Fields(block.get("attention") or {})
        if not attention.flag("no_op") and not attention.flag("replace_with_linear"):
            groups = attention.count("n_heads_in_group")
            leaves.append(grouped(f, f.count("num_attention_heads") // groups))
    return leaves


def multi_head(f: Fields) -> list[Leaf]:
    """Families without grouped queries, whatever the configuration says of key heads."""
    return [grouped(f, f.count("num_attention_heads", "n_head", "n_heads"))] * layer_count(f)


def multi_query(f: Fields) -> list[Leaf]:
    """GPT-BigCode: one key head unless the configuration says otherwise."""
    if "multi_query" in f and not f.flag("multi_query"):
        return multi_head(f)
    return [grouped(f, 1)] * layer_count(f)


def all_tokens(model_type: str) -> Layout:
    return lambda f: [full(f, model_type)] * layer_count(f)


# Families whose wrapper makes plain caches, whatever the windows in its configuration.
_PLAIN = frozenset({"mistral3", "pixtral"})

_LAYOUTS: dict[str, Layout] = {
    "afm7": reused,
    "afmoe": windowed.by_types,
    "baichuan_m1": windowed.baichuan,
    "bailing_hybrid": hybrid.bailing_hybrid,
    "bailing_moe_linear": hybrid.bailing_moe_linear,
    "bailing_moe_v3": hybrid.bailing_moe_v3,
    "cohere2": windowed.cohere2,
    "deepseek_v32": indexed,
    "exaone4": windowed.exaone4,
    "exaone_moe": windowed.by_types,
    "falcon_h1": hybrid.falcon_h1,
    "gear": windowed.gear,
    "gemma3": windowed.gemma3,
    "gemma3_text": windowed.gemma3,
    "gemma3n": windowed.gemma3n,
    "gemma3n_text": windowed.gemma3n,
    "gemma4": windowed.gemma4,
    "gemma4_text": windowed.gemma4,
    "glm_moe_dsa": indexed,
    "gpt2": multi_head,
    "gpt_bigcode": multi_query,
    "gpt_neox": multi_head,
    "gptj": multi_head,
    "gpt_oss": windowed.by_types_alternating,
    "granitemoehybrid": hybrid.granite_hybrid,
    "iquestloopcoder": windowed.looped,
    "jamba": hybrid.jamba,
    "kimi_k3": hybrid.kimi_linear,
    "kimi_linear": hybrid.kimi_linear,
    "laguna": windowed.by_types,
    "lfm2": hybrid.lfm2,
    "lfm2-vl": hybrid.lfm2,
    "lfm2_moe": hybrid.lfm2,
    "llama": windowed.by_types,
    "llama4": windowed.llama4,
    "llama4_text": windowed.llama4,
    "longcat_flash": twice,
    "longcat_flash_ngram": longcat_ngram,
    "mamba": hybrid.mamba,
    "mamba2": hybrid.mamba2,
    "mellum": windowed.by_types,
    "mimo_v2_flash": windowed.mimo,
    "minimax_m3_vl": minimax_m3,
    "ministral3": windowed.by_types,
    "muse_glimmer": windowed.by_types,
    "muse_spark": windowed.by_types,
    "nanbeige": nanbeige,
    "nemotron-nas": nemotron_nas,
    "nemotron_h": hybrid.nemotron_h,
    "olmo3": windowed.by_types_every_fourth,
    "olmo_hybrid": hybrid.olmo_hybrid,
    "openelm": openelm,
    "plamo2": hybrid.plamo2,
    "plamo3": windowed.plamo3,
    "qwen3_5": hybrid.qwen3_next,
    "qwen3_5_moe": hybrid.qwen3_next,
    "qwen3_next": hybrid.qwen3_next,
    "recurrent_gemma": hybrid.recurrent_gemma,
    "rwkv7": hybrid.rwkv7,
    "spark2_5": windowed.by_types,
    "step3p5": windowed.step3p5,
    "talkie": multi_head,
}

# Every layer keeps every token in these; other types are assumed to, with a note.
_PLAIN_NAMES = """
    apertus bailing_moe bitnet cohere dbrx deepseek deepseek_v2 deepseek_v3 dots1 ernie4_5
    ernie4_5_moe exaone gemma gemma2 glm glm4 glm4_moe glm4_moe_lite
    granite granitemoe helium hunyuan hunyuan_v1_dense internlm2 internlm3 kimi_k25 kimi_vl mimo
    minicpm minicpm3 minimax mistral mistral3 mistral4 mixtral nanochat nemotron olmo olmo2 olmoe
    phi phi3 phi3small phimoe pixtral qwen qwen2 qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_vl
    qwen3_vl_moe seed_oss smollm3 solar_open stablelm starcoder2 telechat3 youtu_llm
"""
_KNOWN_PLAIN = frozenset(_PLAIN_NAMES.split())

# Types that mlx-lm runs with another type's classes.
_ALIASES = {
    "deepseek_v41_text": "deepseek_v41",
    "falcon_mamba": "mamba",
    "gemma4_unified": "gemma4",
    "iquestcoder": "llama",
    "joyai_llm_flash": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
    "llava": "mistral3",
    "minimax_m2": "minimax",
    "mistral": "llama",
    "qwen2_5_vl": "qwen2_vl",
    "xverse": "llama",
}

_NOT_UNDERSTOOD = {
    "deepseek_v41": "its cache pools tokens into rows, in a class of its own",
}


def layout_of(config: Config) -> ModelLayout:
    """Return the model's caches; raises SizingError for a layout that is not understood.

    Knows what mlx-lm does, not what the configuration wishes: a window that mlx-lm's class
    ignores keeps every token.
    """
    model_type = _class_of(config)
    if model_type in _NOT_UNDERSTOOD:
        raise SizingError(f"{model_type} is not understood: {_NOT_UNDERSTOOD[model_type]}")
    text = text_config(config)
    fields = Fields(text)
    inner_type = _class_of(text)
    layout = None if model_type in _PLAIN else _LAYOUTS.get(model_type) or _LAYOUTS.get(inner_type)
    notes: list[str] = []
    stranger = ""
    if layout is None:
        layout = all_tokens(model_type)
        if not {model_type, inner_type} & _KNOWN_PLAIN:
            stranger = "the configuration names no model_type"
            if model_type:
                stranger = f"model_type {model_type!r} is not known"
            notes.append(f"{stranger}: every layer is assumed to keep every token")
    try:
        leaves = tuple(layout(fields))
    except SizingError as error:
        # A field is often missing because this is no model's configuration at all.
        raise SizingError(f"{stranger}, and {error}" if stranger else str(error)) from None
    if not leaves:
        raise SizingError(f"no cache was found in the configuration of {model_type}")
    itemsize, note = _itemsize(config, text)
    return ModelLayout(model_type, itemsize, leaves, (*notes, *note))


def _class_of(config: Config) -> str:
    """Return the model type whose classes mlx-lm uses, an empty string when none is named."""
    named = str(config.get("model_type") or "")
    if named == "bailing_hybrid" and "BailingMoeV3ForCausalLM" in (
        config.get("architectures") or []
    ):
        return "bailing_moe_v3"
    return _ALIASES.get(named, named)


def _itemsize(config: Config, text: Config) -> tuple[int, list[str]]:
    for source in (text, config):
        for name in ("dtype", "torch_dtype"):
            if source.get(name) in _ITEMSIZES:
                return _ITEMSIZES[source[name]], []
    return 2, ["the configuration names no dtype: 16 bits are assumed"]
