"""What drives other projects' schedulers alike: small models, prompts, answers, a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mlx_lm.utils import load_model, load_tokenizer

from kit.tinylm import make_model
from omlx_cache import BlockStore, CacheSettings

ANSWER = 12
"""Tokens that a request generates by default."""


class PeerAnswer(NamedTuple):
    """What a request got: how much of its prompt came from a cache, and what was generated."""

    prompt: int
    cached: int
    tokens: tuple[int, ...]


class Loaded(NamedTuple):
    """A model and its tokenizer, from a directory."""

    model: Any
    tokenizer: Any


def loaded(directory: Path, family: str, seed: int = 0) -> Loaded:
    """Load a small model of a family, which is written on the first call, and a tokenizer."""
    path, words = directory / f"{family}-{seed}", directory / "qwen3-0"
    for place in (path, words):
        if not place.exists():
            make_model(place, place.name.rsplit("-", 1)[0], seed=seed)
    # transformers knows some of the families, and does not take them that small.
    return Loaded(load_model(path)[0], load_tokenizer(words))


def abort(serving: Any, asked: Any, steps: int) -> None:
    """Have a client ask and go away after so many steps of its scheduler."""
    serving.add_request(asked)
    for _step in range(steps):
        serving.step()
    serving.abort_request(asked.request_id)
    serving.step()
    assert asked.is_finished(), "the abort was too late"


def prompt_of(length: int, salt: int = 0) -> list[int]:
    """Return tokens that do not repeat soon; another salt, others from the first one on."""
    return [3 + (7 * i * i + (i + 1) * (salt + 1) * 11) % 120 for i in range(length)]


def store_in(directory: Path, **options: Any) -> BlockStore:
    """Open a store that needs no room to spare."""
    given = {"cold_dir": directory, "socket": "off", "min_free_bytes": 0, "hot_bytes": 256 << 20}
    return BlockStore(CacheSettings(**{**given, **options}))
