"""What a family of the zoo is, and how its weights are drawn.

A family is a real mlx-lm model class at a very small size. Weights come from the seed and the
parameter's path only, so two processes build the same model and adding a layer to a configuration
leaves the other layers' weights alone.
"""

import copy
import hashlib
import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from kit.versions import has_model

Builder = Callable[[int], nn.Module]

EMBEDDING_SCALE = 0.2
GAIN = 1.5
SLOW_DECAY = -5.0
DECAY_BIASES = ("dt_bias", "dt_proj.bias", "recurrent_param", "w_lora.lora.2.bias")


@dataclass(frozen=True, slots=True)
class Family:
    """One model family at a small size; building it evaluates MLX.

    `vocab`: token ids are in [0, vocab). `max_context`: most tokens a test should feed it, for
    time or for the position table. `window`: tokens that a windowed or chunked layer still sees,
    0 without one.
    `broken`: the error that mlx-lm itself raises, or an empty string.
    """

    name: str
    build: Builder
    vocab: int
    dtype: mx.Dtype
    notes: str = ""
    max_context: int = 16_384
    window: int = 0
    broken: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def _key(seed: int, path: str) -> mx.array:
    """Random key of one parameter; equal in every process."""
    digest = hashlib.sha256(f"{seed}/{path}".encode()).digest()
    return mx.random.key(int.from_bytes(digest[:8], "little"))


def _is_matrix(path: str, initial: mx.array) -> bool:
    """Whether to draw the weight afresh: a matrix, or zeros in the place of one.

    Vectors and the classes' own decay tables stay near their initial value: classes disagree on
    whether a norm weight means `w` or `1 + w`, and a decay rate must stay one.
    """
    if initial.size == max(initial.shape, default=1):
        return False
    return path.endswith("weight") or not mx.any(initial).item()


def _draw(seed: int, path: str, initial: mx.array, embedding: bool) -> mx.array:
    """A weight that makes the logits depend on distant tokens.

    Embeddings are small, so the residual stream is mostly what the layers wrote into it, and
    recurrent gates are biased towards remembering.
    """
    noise = mx.random.normal(initial.shape, key=_key(seed, path))
    if embedding:
        return EMBEDDING_SCALE * noise
    if path.endswith(DECAY_BIASES):
        return SLOW_DECAY + 0.1 * noise
    if _is_matrix(path, initial):
        # A depthwise convolution's weight is (channels, taps, 1).
        fan_in = initial.shape[-2] if initial.shape[-1] == 1 else initial.shape[-1]
        return GAIN * noise / math.sqrt(fan_in)
    return initial + 0.1 * noise


def _cast(model: nn.Module, path: str, value: mx.array, dtype: mx.Dtype) -> mx.array:
    """As mlx-lm's loader does: a class may keep some parameters in float32."""
    predicate = getattr(model, "cast_predicate", None)
    return value.astype(dtype) if predicate is None or predicate(path) else value


def _constructed(module: str, config: Mapping[str, Any], seed: int) -> nn.Module:
    """The class with its own initial values; leaves the global random state as it was."""
    code = importlib.import_module(f"mlx_lm.models.{module}")
    high, low = mx.random.state[0].tolist()
    mx.random.seed(seed)
    try:
        model = code.Model(code.ModelArgs.from_dict(dict(config)))
        mx.eval(model.parameters())
    finally:
        # A seed is stored as the key itself, so this puts the old state back.
        mx.random.seed((high << 32) | low)
    return model


def build_model(module: str, config: Mapping[str, Any], dtype: mx.Dtype, seed: int) -> nn.Module:
    """A new model in evaluation mode with evaluated random weights; raises what mlx-lm raises."""
    model = _constructed(module, config, seed)
    embeddings = {
        f"{path}.weight" for path, part in model.named_modules() if isinstance(part, nn.Embedding)
    }
    weights = []
    for path, initial in tree_flatten(model.parameters()):
        if mx.issubdtype(initial.dtype, mx.floating):
            drawn = _draw(seed, path, initial, path in embeddings)
            weights.append((path, _cast(model, path, drawn, dtype)))
    model.update(tree_unflatten(weights))
    model.eval()
    mx.eval(model.parameters())
    return model


FAMILIES: dict[str, Family] = {}

VOCAB = 256

# A transformer of the usual shape: two query heads share each key head.
DENSE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32_768,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}

MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def define(
    name: str,
    config: Mapping[str, Any],
    *,
    module: str = "",
    dtype: mx.Dtype = mx.float32,
    **fields: Any,
) -> None:
    """Register a family; `module` is the mlx-lm model file when the name is not it."""
    source = module or name
    if not has_model(source):
        return
    settings = {"model_type": source, **config}

    def build(seed: int) -> nn.Module:
        # Some argument classes edit the nested dictionaries that they are given.
        return build_model(source, copy.deepcopy(settings), dtype, seed)

    if name in FAMILIES:
        raise ValueError(f"family {name} is declared twice")
    FAMILIES[name] = Family(
        name=name, build=build, vocab=VOCAB, dtype=dtype, config=settings, **fields
    )
