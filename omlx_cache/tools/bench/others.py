"""Directory scans and recomputation: what surrounds the moving of bytes."""

import os
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.prefix import PrefixCache
from omlx_cache.session import Session
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.chains import NAMESPACE, touch_page
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, Size
from omlx_cache.tools.bench.timing import in_turn
from omlx_cache.tools.demo.subject import small_model
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.keys import KeyChain, Tokens, as_tokens

CHUNK = 512
SCAN = "bare scandir and stat"


def measure_scan(size: Size, directory: Path) -> list[Row]:
    """Open a cold tier on many files, against listing the directory with their sizes."""
    tokens: Tokens = as_tokens(range(size.files))
    chain = KeyChain(NAMESPACE, tokens, 1)
    for end in range(1, size.files + 1):
        touch_page(directory, chain, end)

    def scan() -> ColdTier:
        tier = ColdTier(directory, 1 << 40)
        tier.open()
        if tier.usage().pages != size.files:
            raise RuntimeError(f"{tier.usage().pages} of {size.files} files were indexed")
        return tier

    runs = min(size.runs, 3)
    times = in_turn({"ours": scan, "bare": lambda: list_files(directory)}, runs)
    what = f"start-up on {size.files:,} files"
    return [Row(what, times["ours"], SCAN, times["bare"], limit=True)]


def list_files(directory: Path) -> int:
    """Return the bytes of all files below a directory; asks for nothing else."""
    total = 0
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            total += list_files(Path(entry.path))
        else:
            total += entry.stat(follow_symlinks=False).st_size
    return total


def measure_recompute(size: Size, directory: Path) -> list[Row]:
    """Prefill mlx-lm's Qwen3 class (the demo's small model), and restore the same prompt."""
    model = small_model()
    tokens = [(7 * i * i + i) % 512 for i in range(size.model_tokens)]
    settings = CacheSettings(
        cold_dir=directory,
        hot_bytes=1 << 30,
        queue_bytes=1 << 28,
        min_free_bytes=0,
        hot_cache_only=False,
        codec="dense",
        socket="off",
        block_size=min(BLOCK_SIZE, size.model_tokens // 2),
    )
    with BlockStore(settings) as store:
        cache = PrefixCache(model, store)
        with cache.session(tokens) as session:
            for chunk in session.prefill_chunks(CHUNK):
                mx.eval(model(mx.array([chunk]), cache=session.prompt_cache))
            session.commit()

        def restore() -> Session:
            session = cache.session(tokens)
            if session.cached_tokens != len(tokens) - 1:
                raise RuntimeError(f"{session.cached_tokens} tokens: {session.miss_reason}")
            return session

        restored = in_turn({"ours": restore}, size.runs)["ours"]
    prefill = min(_prefill(model, tokens) for _ in range(2))
    what = f"restore, hot, {size.model_tokens:,} tokens of a small Qwen3"
    return [Row(what, restored, "recomputing them", prefill)]


def _prefill(model: object, tokens: list[int]) -> float:
    caches = make_prompt_cache(model)
    began = time.perf_counter()
    for start in range(0, len(tokens) - 1, CHUNK):
        chunk = tokens[start : min(start + CHUNK, len(tokens) - 1)]
        model(mx.array([chunk]), cache=caches)  # type: ignore[operator]
        mx.eval([cache.state for cache in caches])
    return time.perf_counter() - began
