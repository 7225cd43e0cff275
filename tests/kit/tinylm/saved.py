"""Writes a model of the zoo and a character tokeniser with a chat template to a directory."""

import copy
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from kit.tokenizer import SPECIALS, VOCAB, tokenizer
from kit.zoo.family import build_model
from kit.zoo.registry import FAMILIES


def make_model(
    directory: Path, family: str, *, seed: int = 0, thinking: bool = False, **overrides: Any
) -> Path:
    """Write a model that `mlx_lm.load` reads; every token is one printable character."""
    directory.mkdir(parents=True)
    config = _config(family, overrides)
    model = build_model(str(config["model_type"]), copy.deepcopy(config), _dtype(family), seed)
    mx.save_safetensors(
        str(directory / "model.safetensors"),
        dict(tree_flatten(model.parameters())),
        metadata={"format": "mlx"},
    )
    eos = SPECIALS.index("<|im_end|>")
    (directory / "config.json").write_text(json.dumps({**config, "eos_token_id": eos}))
    tokenizer(thinking).save_pretrained(str(directory))
    return directory


def _config(family: str, overrides: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(dict(FAMILIES[family].config))
    inner = config.get("text_config", config)
    inner["vocab_size"] = VOCAB
    inner.update(overrides)
    if "query_pre_attn_scalar" in inner:
        # transformers reads the same file, and insists on an integer.
        inner["query_pre_attn_scalar"] = int(inner["query_pre_attn_scalar"])
    return config


def _dtype(family: str) -> Any:
    return FAMILIES[family].dtype
