"""Traces a model in a process of its own, with limited memory and time. Imports no MLX.

A few of mlx-lm's classes evaluate weights on the way: what happens to the child then is the
answer for such a model, and nothing to the process that asked.
"""

import json
import subprocess
import sys
from pathlib import Path

from pydantic import TypeAdapter

from .caches import ModelCaches
from .config import Config, model_type_of, read_config
from .errors import SizingError

ANSWER: TypeAdapter[ModelCaches | str] = TypeAdapter(ModelCaches | str)
"""What the child writes as JSON: what it found, or why nothing."""
MEMORY_BYTES = 2 << 30
"""What the child may take beyond what its libraries did; a trace takes a few MB of it."""
SECONDS = 120.0
OUT_OF_MEMORY = 3
"""The exit status of a child that stopped itself."""


def caches_of(
    model: str | Path | Config, *, memory: int = MEMORY_BYTES, seconds: float = SECONDS
) -> ModelCaches:
    """Return what the model's caches hold; blocks for about a second, at most for `seconds`.

    model: a config.json, a folder that holds one, an id in the local hub cache, or the parsed
        configuration. Raises SizingError: nothing readable there, or not understood, and why.
    """
    config = read_config(model) if isinstance(model, str | Path) else model
    named = model_type_of(config)
    # -P: the working directory may be a downloaded model's, with modules of its own.
    command = [sys.executable, "-P", "-m", "omlx_cache.tools.size.trace", str(memory)]
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(config),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise SizingError(_not_understood(named, f"tracing it took over {seconds:g} s")) from None
    if ended.returncode < 0 or ended.returncode == OUT_OF_MEMORY:
        reason = f"building it takes more than {memory >> 20} MiB: its class evaluates weights"
        raise SizingError(_not_understood(named, reason))
    if ended.returncode != 0:
        words = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise SizingError(_not_understood(named, f"the process that traces it failed: {words[-1]}"))
    answer = ANSWER.validate_json(ended.stdout)
    if isinstance(answer, str):
        raise SizingError(_not_understood(named, answer))
    return answer


def _not_understood(model_type: str, reason: str) -> str:
    return f"{model_type} is not understood: {reason}"
