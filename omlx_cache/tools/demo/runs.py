"""One request, with the cache or without: timed, and with the tokens that came out."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.prefix import PrefixCache
from omlx_cache.session import Session

WARM_UP = "warm-up"
Advance = Callable[[int], None]
"""Told how many more prompt tokens are done."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a request did. `first_token_seconds` runs from the arrival of the prompt to its first
    new token, restore included; `peak_bytes` is MLX's, model and hot tier included."""

    restored_tokens: int
    first_token_seconds: float
    peak_bytes: int
    new_tokens: tuple[int, ...]
    miss_reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Run":
        return cls(**{**fields, "new_tokens": tuple(fields["new_tokens"])})


def warm_up(model: Any, length: int) -> None:
    """Let MLX load the kernels of a short prefill, so that no run pays for them."""
    run_plain(model, *_short(length), 2, _unheard)


def warm_up_cache(cache: PrefixCache, model: Any, length: int) -> None:
    """The same for a commit and for whole and partial restores; leaves nothing in the store."""
    tokens, ends = _short(length)
    half = tokens[: length // 2] + [1] * (length - length // 2)
    for prompt in (tokens, tokens, half):
        run_cached(cache, model, prompt, ends, 2, _unheard, commit=True, salt=WARM_UP)
    cache.clear(salt=WARM_UP)


def _short(length: int) -> tuple[list[int], tuple[int, ...]]:
    return [0] * length, (length // 2, length - 1, length)


def _unheard(_tokens: int) -> None:
    """Nobody watches a warm-up."""


def run_plain(
    model: Any, tokens: Sequence[int], ends: Sequence[int], new: int, advance: Advance
) -> tuple[Run, int]:
    """Compute a prompt with mlx-lm alone; return the run and the bytes of its KV."""
    mx.reset_peak_memory()
    began = time.perf_counter()
    cache = make_prompt_cache(model)
    token = _prefill(model, cache, tokens, 0, ends, advance)
    first = time.perf_counter() - began
    made = [token, *_decode(model, cache, token, new - 1)]
    run = Run(0, first, mx.get_peak_memory(), tuple(made))
    return run, sum(int(layer.nbytes) for layer in cache)


def run_cached(
    cache: PrefixCache,
    model: Any,
    tokens: Sequence[int],
    ends: Sequence[int],
    new: int,
    advance: Advance,
    *,
    commit: bool = False,
    salt: str,
) -> tuple[Run, float]:
    """Restore a prompt and compute the rest; return the run and the seconds of its commit."""
    mx.reset_peak_memory()
    began = time.perf_counter()
    with cache.session(tokens, max_new_tokens=new, salt=salt) as session:
        advance(session.cached_tokens)
        token = _prefill(
            model, session.prompt_cache, tokens, session.cached_tokens, ends, advance, session
        )
        first = time.perf_counter() - began
        made = [token]
        for following in _decode(model, session.prompt_cache, token, new - 1):
            session.append(made[-1])
            made.append(following)
        peak = mx.get_peak_memory()
        began = time.perf_counter()
        if commit:
            session.commit()
        seconds = time.perf_counter() - began
        return Run(session.cached_tokens, first, peak, tuple(made), session.miss_reason), seconds


def _prefill(
    model: Any,
    cache: Any,
    tokens: Sequence[int],
    start: int,
    ends: Sequence[int],
    advance: Advance,
    session: Session | None = None,
) -> int:
    """Feed the tokens from `start` on, step by step, and return the first new token."""
    logits = None
    for end in ends:
        if end <= start:
            continue
        logits = model(mx.array([list(tokens[start:end])]), cache=cache)
        mx.eval([layer.state for layer in cache])
        if session is not None:
            session.checkpoint(end)
        advance(end - start)
        start = end
    return _greedy(logits)


def _decode(model: Any, cache: Any, token: int, count: int) -> Iterable[int]:
    for _ in range(count):
        token = _greedy(model(mx.array([[token]]), cache=cache))
        yield token


def _greedy(logits: Any) -> int:
    token: Any = mx.argmax(logits[0, -1]).item()
    return int(token)
