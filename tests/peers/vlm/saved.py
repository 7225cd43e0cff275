"""A small model of mlx-vlm's on disk, with a tokeniser, as its server loads it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from vlm.models import CONFIGS, build

TESTS = Path(__file__).resolve().parents[2]
END = 2


def save(directory: Path, name: str, seed: int = 0) -> Path:
    """Write a model of text that mlx-vlm loads; returns its directory."""
    # Last: what is installed shall win over folders of tests that are called the same.
    sys.path.append(str(TESTS))
    from kit.tokenizer import tokenizer

    directory.mkdir(parents=True)
    mx.save_safetensors(
        str(directory / "model.safetensors"),
        dict(tree_flatten(build(name, seed).parameters())),
        metadata={"format": "mlx"},
    )
    config = {**CONFIGS[name], "eos_token_id": END}
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer().save_pretrained(str(directory))
    return directory
