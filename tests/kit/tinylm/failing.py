"""A model on disk that cannot compute one of its tokens, and computes another oddly."""

import json
from pathlib import Path

from .saved import VOCAB, make_model

BAD = VOCAB - 1
"""The token that the model fails at; no text has it, but for the last Greek letter."""

ODD = VOCAB - 2
"""The token after which the model gives fewer logits than it has tokens."""

_SOURCE = f'''
"""qwen3, with a token that it cannot compute."""

import mlx.core as mx
from mlx_lm.models import qwen3

ModelArgs = qwen3.ModelArgs


class Model(qwen3.Model):
    def __call__(self, inputs, *args, **options):
        if mx.any(inputs == {BAD}).item():
            raise RuntimeError("the bad token")
        logits = super().__call__(inputs, *args, **options)
        return logits[..., :8] if mx.any(inputs == {ODD}).item() else logits
'''


def make_failing_model(directory: Path) -> Path:
    """Write a model for `--trust-remote-code` that raises for the token `BAD`."""
    make_model(directory, "qwen3")
    config = directory / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_file": "failing.py"}))
    (directory / "failing.py").write_text(_SOURCE)
    return directory
