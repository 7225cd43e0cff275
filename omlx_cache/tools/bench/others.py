"""Look-ups, directory scans and recomputation: what surrounds the moving of bytes."""

import os
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.adapters.base import PAGED
from omlx_cache.prefix import PrefixCache
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.session import Session
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, Size
from omlx_cache.tools.bench.timing import in_turn
from omlx_cache.tools.demo.subject import small_model
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import PageName, format_name, shard_of
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, as_tokens
from omlx_cache_storage.page import PageId

NAMESPACE = BlockKey(bytes(32))
CHUNK = 512


def measure_lookup(size: Size, directory: Path) -> list[Row]:
    """Find a long prefix of which every block is known, against hashing the same tokens."""
    tokens = as_tokens([(17 * i) % 150_000 for i in range(size.chain_tokens + 1)])
    chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
    cold = _directory_of(chain, directory)
    ends = range(BLOCK_SIZE, size.chain_tokens + 1, BLOCK_SIZE)

    def look_up() -> None:
        point = find_restore_point(
            KeyChain(NAMESPACE, tokens, BLOCK_SIZE),
            (PAGED,),
            _ColdView(cold),
            limit=len(tokens) - 1,
        )
        if point.position != size.chain_tokens:
            raise RuntimeError(f"the look-up ended at {point.position}")

    def hash_chain() -> None:
        KeyChain(NAMESPACE, tokens, BLOCK_SIZE).key(ends[-1])

    times = in_turn({"ours": look_up, "hash": hash_chain}, size.runs)
    what = f"look-up of {size.chain_tokens:,} tokens"
    return [Row(what, times["ours"], "the bare SHA-256 chain", times["hash"], limit=True)]


class _ColdView:
    """What a look-up asks of a store, answered by a cold tier's index alone."""

    def __init__(self, cold: ColdTier) -> None:
        self.find = cold.info
        self.tails = cold.tails
        self.why_hidden = cold.why_hidden


def _directory_of(chain: KeyChain, directory: Path) -> ColdTier:
    """Make empty page files for every block of a chain and open a tier on them."""
    for end in range(chain.block_size, len(chain) + 1, chain.block_size):
        name = PageName(
            PageId(chain.key(end), "paged"), chain.parent(end)[:8], end, chain.block_size, False
        )
        _touch(directory, name)
    cold = ColdTier(directory, 1 << 40)
    cold.open()
    return cold


def _touch(directory: Path, name: PageName) -> None:
    shard = directory / NAMESPACE.hex() / shard_of(name.id.key)
    shard.mkdir(parents=True, exist_ok=True)
    (shard / format_name(name)).touch()


def measure_scan(size: Size, directory: Path) -> list[Row]:
    """Open a cold tier on many files, against listing the directory with their sizes."""
    tokens: Tokens = as_tokens(range(size.files))
    chain = KeyChain(NAMESPACE, tokens, 1)
    for end in range(1, size.files + 1):
        _touch(
            directory,
            PageName(PageId(chain.key(end), "paged"), chain.parent(end)[:8], end, 1, False),
        )

    def scan() -> ColdTier:
        tier = ColdTier(directory, 1 << 40)
        tier.open()
        if tier.usage().pages != size.files:
            raise RuntimeError(f"{tier.usage().pages} of {size.files} files were indexed")
        return tier

    runs = min(size.runs, 3)
    times = in_turn({"ours": scan, "bare": lambda: _list(directory)}, runs)
    what = f"start-up on {size.files:,} files"
    return [Row(what, times["ours"], "bare scandir and stat", times["bare"], limit=True)]


def _list(directory: Path) -> int:
    total = 0
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            total += _list(Path(entry.path))
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
