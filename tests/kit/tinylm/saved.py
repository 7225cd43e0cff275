"""Models of the zoo on disk with a character tokeniser and a chat template; some fail at a token,
compute another oddly, and wait at a gate in a prompt."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from kit.tokenizer import SPECIALS, VOCAB, tokenizer
from kit.zoo.family import FAMILIES, build_model


def make_model(
    directory: Path, family: str, *, seed: int = 0, thinking: bool = False, **overrides: Any
) -> Path:
    """Write a model that `mlx_lm.load` reads; every token is one printable character."""
    directory.mkdir(parents=True)
    config = _config(family, overrides)
    model = build_model(
        str(config["model_type"]), copy.deepcopy(config), FAMILIES[family].dtype, seed
    )
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


BAD = VOCAB - 1
"""The token that the model fails at; no text has it, but for the last Greek letter."""

ODD = VOCAB - 2
"""The token after which the model gives fewer logits than it has tokens."""

_SOURCE = f'''
"""A model with a token that it cannot compute, and a gate."""

import importlib
import json
import time
from pathlib import Path

import mlx.core as mx

FOLDER = Path(__file__).parent
base = importlib.import_module(
    "mlx_lm.models." + json.loads((FOLDER / "config.json").read_text())["model_type"]
)
ModelArgs = base.ModelArgs
passed = 0


def pass_the_gate(tokens):
    global passed
    passed += tokens
    try:
        free = int((FOLDER / "gate").read_text())
    except FileNotFoundError:
        return
    if passed > free:
        time.sleep(0.05)


class Model(base.Model):
    def __call__(self, inputs, *args, **options):
        if inputs.shape[1] > 1:
            pass_the_gate(inputs.shape[1])
        if mx.any(inputs == {BAD}).item():
            raise RuntimeError("the bad token")
        logits = super().__call__(inputs, *args, **options)
        return logits[..., :8] if mx.any(inputs == {ODD}).item() else logits
'''


class Gate:
    """The gate of one model. While it is closed a step of a prompt takes 50 ms, so that a prompt of
    hundreds of steps is being computed for as long as a test needs; open, it takes no time."""

    def __init__(self, model: Path) -> None:
        self._file = model / "gate"

    def close(self, after: int = 0) -> None:
        """Close it for what comes after so many tokens of prompts, since the model was loaded."""
        written = self._file.with_suffix(".new")
        written.write_text(str(after))
        os.replace(written, self._file)

    def open(self) -> None:
        self._file.unlink(missing_ok=True)


def make_failing_model(directory: Path, family: str = "qwen3") -> Path:
    """Write a model for `--trust-remote-code` that raises for the token `BAD`; its gate is open."""
    make_model(directory, family)
    config = directory / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_file": "failing.py"}))
    (directory / "failing.py").write_text(_SOURCE)
    return directory
