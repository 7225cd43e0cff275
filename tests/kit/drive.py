"""Running a model through sessions, and the same steps again without any cache."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache import CacheSettings, PrefixCache
from omlx_cache.commit.committer import CommitResult
from omlx_cache.session import Session


def settings(directory: Path, **fields: Any) -> CacheSettings:
    """Settings of a private store: no socket, no fsync, budgets that a test does not meet."""
    return CacheSettings(
        **{
            "cold_dir": directory,
            "cold_bytes": "2GiB",
            "hot_bytes": "256MiB",
            "queue_bytes": "256MiB",
            "min_free_bytes": 0,
            "durability": "none",
            "socket": "off",
            # Opens no port by itself: with it prompts are remembered, and misses explained.
            "status": "on",
            "block_size": 32,
            **fields,
        }
    )


def random_tokens(count: int, seed: int, vocab: int = 256) -> list[int]:
    """Token ids drawn from a seed; equal in every process."""
    return mx.random.randint(0, vocab, (count,), key=mx.random.key(seed)).tolist()


def feed(model: Any, prompt_cache: list[Any], chunk: Sequence[int]) -> mx.array:
    """Return the logits after every token of a chunk, evaluated."""
    logits = model(mx.array([list(chunk)]), cache=prompt_cache)[0]
    mx.eval(logits)
    return logits


@dataclass
class FedTurn:
    """What one request did: the chunks fed, the logits of each, and what was stored."""

    cached: int
    reason: str | None
    steps: list[list[int]] = field(default_factory=list)
    logits: list[mx.array] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    result: CommitResult | None = None

    @property
    def digest(self) -> str:
        return digest(self.logits)


def digest(logits: Sequence[mx.array]) -> str:
    """A digest of the exact bits of logits."""
    sha = hashlib.sha256()
    for array in logits:
        sha.update(bytes(memoryview(array)))
    return sha.hexdigest()


def prefill(model: Any, session: Session, step: int) -> FedTurn:
    """Feed a session's remaining prompt."""
    turn = FedTurn(session.cached_tokens, session.miss_reason)
    for chunk in session.prefill_chunks(step=step):
        turn.logits.append(feed(model, session.prompt_cache, chunk))
        turn.steps.append(chunk)
    return turn


def decode(model: Any, session: Session, turn: FedTurn, count: int) -> None:
    """Feed `count` greedy tokens and record them in the session."""
    for _ in range(count):
        token = int(mx.argmax(turn.logits[-1][-1]).item())
        turn.logits.append(feed(model, session.prompt_cache, [token]))
        turn.steps.append([token])
        turn.answer.append(token)
        session.append(token)


def request(
    model: Any,
    cache: PrefixCache,
    tokens: Sequence[int],
    *,
    step: int = 32,
    new: int = 0,
    commit: bool = True,
    **options: Any,
) -> FedTurn:
    """One whole request: restore, prefill, decode `new` greedy tokens, commit."""
    with cache.session(tokens, **options) as session:
        turn = prefill(model, session, step)
        decode(model, session, turn, new)
        if commit:
            turn.result = session.commit()
    return turn


def run(model: Any, steps: Sequence[Sequence[int]]) -> list[mx.array]:
    """The logits of each of these steps, on a fresh cache that no session has touched."""
    prompt_cache = make_prompt_cache(model)
    return [feed(model, prompt_cache, step) for step in steps]


def chunks(tokens: Sequence[int], step: int) -> list[list[int]]:
    """Cut tokens as a plain prefill loop does."""
    return [list(tokens[start : start + step]) for start in range(0, len(tokens), step)]


def same(ours: Sequence[mx.array], theirs: Sequence[mx.array]) -> bool:
    """True when the last `len(ours)` logits of a reference have our bits."""
    assert ours
    assert len(theirs) >= len(ours)
    return digest(ours) == digest(theirs[-len(ours) :])
