"""Models whose answers are played: one with random weights calls no tool."""

import json
import os
from pathlib import Path
from typing import Any

from kit.templates import MARKERS, TEMPLATES
from kit.tokenizer import tokenizer

from .saved import make_model

_SOURCE = '''
"""A model whose answers are played, by a logits processor that mlx-lm's server makes."""

import importlib
import json
from pathlib import Path

import mlx.core as mx
from mlx_lm import server

FOLDER = Path(__file__).parent
base = importlib.import_module(
    "mlx_lm.models." + json.loads((FOLDER / "config.json").read_text())["model_type"]
)
Model, ModelArgs = base.Model, base.ModelArgs
made = server._make_logits_processors


class Player:
    def __init__(self):
        self.left = None

    def __call__(self, tokens, logits):
        if self.left is None:
            self.left = json.loads((FOLDER / "answer.json").read_text())
        token = self.left.pop(0) if self.left else 2
        return mx.where(mx.arange(logits.shape[-1]) == token, 0.0, -mx.inf)[None]


server._make_logits_processors = lambda args: [*made(args), Player()]
'''


class PlayedModel:
    """A model for `--trust-remote-code`, with one of `kit.templates`: a request is answered with
    what was written last."""

    def __init__(self, path: Path, family: str, template: str) -> None:
        make_model(path, family)
        self.path = path
        self.tokenizer: Any = tokenizer(template=TEMPLATES[template], markers=MARKERS)
        self.tokenizer.save_pretrained(str(path))
        config = path / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "model_file": "played.py"}))
        (path / "played.py").write_text(_SOURCE)

    def write(self, answer: str) -> None:
        """Have this said next; a new answer replaces it."""
        tokens = self.tokenizer.encode(answer, add_special_tokens=False)
        written = self.path / "answer.new"
        written.write_text(json.dumps(tokens))
        os.replace(written, self.path / "answer.json")
