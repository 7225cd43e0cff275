"""One request, with the cache or without.

`python -m omlx_cache.tools.demo_runs` is the demo's second process, with requests on standard
input. It knows nothing but the model, the prompts and the directory, so its restored pages come
from the disk.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.integrations.mlx_lm.models import first_line
from omlx_cache.prefix import PrefixCache
from omlx_cache.session import Session
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.sizes import LONGEST_WAIT
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.disk import can_forget, forget
from omlx_cache.tools.small_model import VOCABULARY, small_model, whole_settings
from omlx_cache_storage.errors import CacheError

ROOM_BYTES = 64 << 20
CHUNK = 512
WARM_UP = "warm-up"
Advance = Callable[[int], object]
"""Told how many more prompt tokens are done."""


class DemoError(CacheError):
    """The demo cannot run with these arguments; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Subject:
    model: Any
    name: str
    vocabulary: int
    encode: Callable[[str], Sequence[int]]


def load_subject(model: str | None) -> Subject:
    """Return the model that mlx-lm finds under a path or id, the small one for None. Raises
    DemoError when mlx-lm cannot load it."""
    if model is None:
        # It has no tokenizer: the bytes of a text are its tokens.
        return Subject(small_model(), "Qwen3 class, random weights", VOCABULARY, str.encode)
    if model.startswith(("/", ".", "~")) and not Path(model).exists():
        raise DemoError(f"mlx-lm cannot load {model!r}: there is no such folder")
    try:
        loaded, tokenizer = mlx_lm.load(model)
    except Exception as error:
        raise DemoError(f"mlx-lm cannot load {model!r}: {first_line(error)}") from error
    return Subject(loaded, model, int(tokenizer.vocab_size), tokenizer.encode)


@dataclass(frozen=True, slots=True)
class DemoRun:
    """`first_token_seconds` runs from the arrival of the prompt to its first new token, restore
    included; `peak_bytes` is MLX's, model and hot tier included."""

    restored_tokens: int
    first_token_seconds: float
    peak_bytes: int
    new_tokens: Sequence[int]
    miss_reason: str | None = None


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """Tokens, the positions at which every run `ends` a step, and how many `new` ones to generate.
    Recurrent state is kept at `shared` and before the last token."""

    tokens: Sequence[int]
    ends: Sequence[int]
    shared: int
    new: int

    def positions(self, *, start: int, stop: int, block_size: int, branch: int | None) -> list[int]:
        """Return the restore points, as a snapshot policy does."""
        return [place for place in (self.shared, len(self.tokens) - 1) if start < place < stop]


def run_plain(model: Any, prompt: DemoPrompt, advance: Advance) -> tuple[DemoRun, int]:
    """Compute a prompt with mlx-lm alone; return the run and the bytes of its KV."""
    caches = make_prompt_cache(model)
    run = _run(model, prompt, caches, time.perf_counter(), advance)
    return run, sum(int(layer.nbytes) for layer in caches)


def run_cached(
    cache: PrefixCache, model: Any, prompt: DemoPrompt, salt: str, advance: Advance, *, commit: bool
) -> tuple[DemoRun, float]:
    """Restore a prompt and compute the rest; return the run and the seconds of its commit."""
    began = time.perf_counter()
    with cache.session(prompt.tokens, max_new_tokens=prompt.new, salt=salt) as session:
        advance(session.cached_tokens)
        run = _run(model, prompt, session.prompt_cache, began, advance, session)
        began = time.perf_counter()
        if commit:
            session.commit()
        return run, time.perf_counter() - began


def _run(
    model: Any,
    prompt: DemoPrompt,
    caches: list[Any],
    began: float,
    advance: Advance,
    session: Session | None = None,
) -> DemoRun:
    mx.reset_peak_memory()
    restored = start = 0 if session is None else session.cached_tokens
    for end in (end for end in prompt.ends if end > restored):
        logits = model(mx.array([list(prompt.tokens[start:end])]), cache=caches)
        mx.eval([layer.state for layer in caches])
        if session is not None:
            session.checkpoint(end)
        advance(end - start)
        start = end
    made = [_greedy(logits)]
    first = time.perf_counter() - began
    while len(made) < prompt.new:
        following = _greedy(model(mx.array([made[-1:]]), cache=caches))
        if session is not None:
            session.append(made[-1])
        made.append(following)
    reason = None if session is None else session.miss_reason
    return DemoRun(restored, first, mx.get_peak_memory(), made, reason)


def _greedy(logits: Any) -> int:
    return int(mx.argmax(logits[0, -1]))


def warm_up(model: Any, length: int, cache: PrefixCache | None = None) -> None:
    """Let MLX load the kernels of a short prefill, and with a cache those of a commit and of whole
    and partial restores, so that no run pays for them. Leaves nothing in the store."""
    half = length // 2
    ends = half, length - 1, length
    first = DemoPrompt([0] * length, ends, half, 2)
    if cache is None:
        run_plain(model, first, unheard)
        return
    for prompt in (first, first, DemoPrompt([0] * half + [1] * (length - half), ends, half, 2)):
        run_cached(cache, model, prompt, WARM_UP, unheard, commit=True)
    cache.clear(salt=WARM_UP)


def unheard(_tokens: int) -> None:
    """Show nothing."""


def demo_settings(cold_dir: Path, kv_bytes: int, **changed: Any) -> CacheSettings:
    """Return settings with room for every page of the demo; raises ConfigError."""
    budget = 8 * kv_bytes + ROOM_BYTES
    queue = changed.get("hot_bytes", budget)
    return whole_settings(
        cold_dir, budget, queue_bytes=queue, commit_wait_seconds=LONGEST_WAIT, **changed
    )


def demo_cache(model: Any, store: BlockStore, prompt: DemoPrompt) -> PrefixCache:
    """Raises DemoError for a model whose cache cannot be kept."""
    cache = PrefixCache(model, store, policy=prompt)
    if cache.unsupported_reason is not None:
        raise DemoError(f"the cache of this model cannot be kept: {cache.unsupported_reason}")
    return cache


def run_in_new_process(model: str | None, requests: Sequence[Mapping[str, Any]]) -> list[DemoRun]:
    """Let a new Python process `restart` with each of the arguments, and return its runs. Raises
    DemoError with the process's last words when it fails."""
    ended = subprocess.run(
        [sys.executable, "-m", "omlx_cache.tools.demo_runs"],
        input=json.dumps({"model": model, "requests": requests}),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        words = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise DemoError(f"the new process ended with {ended.returncode}: {words[-1]}")
    return [DemoRun(**run) for run in json.loads(ended.stdout.splitlines()[-1])]


def restart(
    model: Any, prompt: Mapping[str, Any], salt: str, cold_dir: str, kv_bytes: int, **changed: Any
) -> DemoRun:
    wanted = DemoPrompt(**prompt)
    if can_forget():
        forget(Path(cold_dir))
    with BlockStore(demo_settings(Path(cold_dir), kv_bytes, **changed), name="demo") as store:
        cache = demo_cache(model, store, wanted)
        return run_cached(cache, model, wanted, salt, unheard, commit=False)[0]


def main() -> int:
    told: dict[str, Any] = json.load(sys.stdin)
    model = load_subject(told["model"]).model
    warm_up(model, min(CHUNK, *(len(request["prompt"]["tokens"]) for request in told["requests"])))
    print(json.dumps([asdict(restart(model, **request)) for request in told["requests"]]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
