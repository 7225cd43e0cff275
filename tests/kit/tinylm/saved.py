"""Writes a model of the zoo and a character tokeniser with a chat template to a directory."""

import copy
import json
import string
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from kit.zoo.family import build_model
from kit.zoo.registry import FAMILIES

VOCAB = 128
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINKING = ["<think>", "</think>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Reasoning is dropped from every answer but the one that is being written.
STRIPS_REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)


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
    _tokenizer(thinking).save_pretrained(str(directory))
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


def _tokenizer(thinking: bool) -> PreTrainedTokenizerFast:
    specials = SPECIALS + (THINKING if thinking else [])
    characters = [c for c in string.printable if c not in "\r\t\x0b\x0c"]
    others = [chr(code) for code in range(0x3B1, 0x3B1 + 64)]
    words = (specials + characters + others)[:VOCAB]
    inner = Tokenizer(
        models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], unk_token=words[0])
    )
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(SPECIALS)
    if thinking:
        inner.add_tokens(THINKING)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        unk_token=words[0],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = STRIPS_REASONING if thinking else CHATML
    return tokenizer
