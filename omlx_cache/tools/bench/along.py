"""What the cache costs on the model's thread while a model computes, beside not having it."""

import itertools
from functools import partial
from pathlib import Path
from statistics import median

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.prefix import PrefixCache
from omlx_cache.session import Session
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, Size
from omlx_cache.tools.bench.timing import seconds
from omlx_cache.tools.demo.subject import VOCABULARY, small_model

CHUNKS = 4
FLUSH_SECONDS = 600.0


def measure_along(size: Size, pages: Path, directory: Path) -> list[Row]:
    """Commits beside a prefill, and commits and restores that have little left to do.

    `pages` holds what `measure_hot` left; `directory` is made for the prefill's store.
    """
    return [*_prefill_row(size, directory), *_commit_row(size, pages), *_begun_row(size, pages)]


def _prefill_row(size: Size, directory: Path) -> list[Row]:
    """Prefill a small Qwen3 in chunks, each run under a salt of its own: nothing is restored."""
    model = small_model()
    tokens = [(7 * i * i + i) % VOCABULARY for i in range(size.model_tokens)]
    step = size.model_tokens // CHUNKS
    salts = itertools.count()
    settings = CacheSettings(
        cold_dir=directory,
        hot_bytes=1 << 30,
        queue_bytes=1 << 28,
        min_free_bytes=0,
        hot_cache_only=False,
        write_policy="through",
        codec="dense",
        socket="off",
        block_size=min(BLOCK_SIZE, step),
    )
    with BlockStore(settings) as store:
        cache = PrefixCache(model, store)

        def with_cache() -> Session:
            session = cache.session(tokens, salt=f"run {next(salts)}")
            for chunk in session.prefill_chunks(step):
                model(mx.array([chunk]), cache=session.prompt_cache)
                mx.eval([layer.state for layer in session.prompt_cache])
            if session.stored != len(tokens):
                raise RuntimeError(f"blocks of {session.stored} tokens were stored")
            return session

        def without() -> object:
            caches = make_prompt_cache(model)
            for start in range(0, len(tokens), step):
                model(mx.array([tokens[start : start + step]]), cache=caches)
                mx.eval([layer.state for layer in caches])
            return caches

        # The fastest of each: a median moves by more than the few percent that are looked for.
        pairs = [(seconds(with_cache), seconds(without)) for _ in range(size.runs + 1)]
    ours, other = (min(times) for times in zip(*pairs, strict=True))
    what = f"prefill of {size.model_tokens:,} tokens in {CHUNKS} chunks, committing along"
    return [Row(what, ours, "the same without a cache", other)]


def _commit_row(size: Size, pages: Path) -> list[Row]:
    """Commit what was just restored from the disk, against a commit in which every page is new."""
    bed = Bed(size, pages, hot=False)
    salts = itertools.count()
    spent: dict[str, list[float]] = {"nothing": [], "everything": []}
    with bed.store:
        live = bed.live_arrays()
        for _ in range(size.runs + 1):
            restored = bed.restore()
            spent["nothing"].append(seconds(partial(_commit_nothing, restored)))
            salt = f"all {next(salts)}"
            filled = bed.filled(live, salt)
            spent["everything"].append(seconds(partial(bed.commit, filled)))
            bed.store.flush(FLUSH_SECONDS)
            bed.cache.clear(salt=salt)
    nothing, everything = (median(times[1:]) for times in spent.values())
    what = "commit of nothing new after a cold restore"
    return [Row(what, nothing, "a commit of everything", everything)]


def _commit_nothing(session: Session) -> None:
    result = session.commit()
    if result.pages:
        raise RuntimeError(f"{result.pages} pages were stored again")


def _begun_row(size: Size, pages: Path) -> list[Row]:
    """Take a restore that was begun and has come, against one that reads on the spot: the time of
    the model's thread, with the files in the system's cache."""
    bed = Bed(size, pages, hot=False)
    spent: dict[str, list[float]] = {"taken": [], "on the spot": []}
    with bed.store:
        for _ in range(size.runs + 1):
            begun = bed.begin()
            spent["taken"].append(seconds(partial(bed.restore, begun=begun)))
            spent["on the spot"].append(seconds(bed.restore))
    taken, on_the_spot = (median(times[1:]) for times in spent.values())
    what = "restore, cold, begun ahead and ready"
    return [Row(what, taken, "a restore on the spot", on_the_spot, size.kv_bytes)]
