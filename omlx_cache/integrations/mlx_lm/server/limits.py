"""What one request, and all that are held at once, may take."""

import resource
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from omlx_cache.tools.size.estimate import SizingError, read_config

CONTEXT_TOKENS = 1 << 20
"""For a model whose configuration names no context."""

JSON_DEPTH = 100
JSON_DIGITS = 400
JSON_VALUES = 1 << 20
CONNECTIONS = 1024
HELD_BODIES = 8
"""The largest bodies that may be held at once; smaller ones fit more often."""

_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "model_max_length",
    "n_positions",
    "n_ctx",
    "seq_length",
)
_PARTS = ("text_config", "llm_config", "language_config")
_SCALINGS = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True, slots=True)
class Limits:
    """Each is a flag of `serve`. `prompt_tokens` None: what the model's configuration names."""

    body_bytes: int = 32 << 20
    prompt_tokens: int | None = None
    requests: int = 512
    receive_seconds: float = 30.0

    @property
    def held_bytes(self) -> int:
        """Bytes of all bodies that are held at once."""
        return HELD_BODIES * self.body_bytes

    @property
    def json_values(self) -> int:
        """Values in one body: a prompt may be a list of tokens."""
        return JSON_VALUES + (self.prompt_tokens or 0)

    @property
    def whole_receive_seconds(self) -> float:
        """How long a request may take to come in, if it never stalls for `receive_seconds`."""
        return 10 * self.receive_seconds

    def tokens_of(self, model: str) -> int:
        """Return how many tokens a prompt for this model may have."""
        return self.prompt_tokens or context_of(model)


@lru_cache(maxsize=32)
def context_of(model: str) -> int:
    """Return how many tokens a model was made for, scaled positions included; reads one file."""
    try:
        config = read_config(model)
    except (SizingError, ValueError):
        return CONTEXT_TOKENS
    return max(map(_context, (config, *_nested(config))), default=0) or CONTEXT_TOKENS


def _nested(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [config[name] for name in _PARTS if isinstance(config.get(name), dict)]


def _context(config: Mapping[str, Any]) -> int:
    named = max((_positive(config.get(name)) for name in _CONTEXT_FIELDS), default=0.0)
    scaled = 0.0
    for name in _SCALINGS:
        scaling = config.get(name)
        if isinstance(scaling, dict):
            # Some configurations name the context before scaling, some the one after it.
            original = _positive(scaling.get("original_max_position_embeddings")) or named
            scaled = max(scaled, _positive(scaling.get("factor")) * original)
    return int(min(max(named, scaled), 1e12))


def _positive(value: object) -> float:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if usable else 0.0  # type: ignore[arg-type]


def most_connections() -> int:
    """Raise this process's limit of descriptors to what the system lets it, and return how many
    connections leave enough of them to the cold tier."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CONNECTIONS if hard == resource.RLIM_INFINITY else min(4 * CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(CONNECTIONS, soft // 2))
