"""Restores and commits beside memcpy, raw reads, mlx-lm's own files and recomputing."""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache

from omlx_cache.arrays.mlxio import Array, allocate_payload, evaluate
from omlx_cache.prefix import PrefixCache
from omlx_cache.session import Session
from omlx_cache.store import READ_THREADS, BlockStore
from omlx_cache.tools.bench.bed import Bed, LayersOnly
from omlx_cache.tools.bench.disk import RawRead, can_forget, forget
from omlx_cache.tools.bench.figures import (
    BLOCK_SIZE,
    BenchRow,
    Measured,
    Peak,
    PreparedWork,
    Size,
    Work,
    beside,
    in_turn,
)
from omlx_cache.tools.small_model import VOCABULARY, small_model, whole_settings

CHUNKS = 4
LARGEST_BYTES = 1 << 30
"""MLX's shapes are 32-bit integers."""


def measure_restores(size: Size, directory: Path) -> Measured:
    pages = directory / "pages"
    hot_rows, hot_peak = _hot(size, pages)
    cold_rows, cold_peak = _cold(size, pages, directory / "mlx-lm.safetensors")
    model_rows = _beside_a_model(size, directory / "model")
    return Measured([*hot_rows, *cold_rows, *model_rows], [hot_peak, cold_peak])


def _hot(size: Size, pages: Path) -> tuple[list[BenchRow], Peak]:
    """Commit and restore within one process; leaves the pages in the directory."""
    blocks, nbytes = size.tokens // BLOCK_SIZE, size.kv_bytes
    bed = Bed(size, pages)
    with bed.store:
        source = np.full(nbytes, 1, np.uint8)
        payloads = [allocate_payload(nbytes // blocks) for _ in range(blocks)]
        limits: dict[str, list[Work]] = {
            "one memcpy": [partial(np.copyto, np.zeros(nbytes, np.uint8), source)],
            "one memcpy into new memory": [source.copy],
            "one MLX concatenation": [lambda: _concatenated(payloads)],
        }
        live = bed.live_arrays()
        commit = PreparedWork(partial(bed.again, live), bed.commit)
        what = "commit, on the caller's thread"
        rows = beside(what, commit, size.runs, limits=limits, nbytes=nbytes)
        bed.commit(bed.filled(live))
        bed.flush()
        del live, commit
        rows += beside("restore, hot", bed.restore, size.runs, limits=limits, nbytes=nbytes)
        return rows, _peak("restore, hot", bed)


def _concatenated(payloads: Sequence[Array]) -> list[Array]:
    """Join pages of one size into new arrays of up to 1 GiB, on MLX's default device."""
    each = max(1, LARGEST_BYTES // payloads[0].nbytes)
    joined = [
        mx.concatenate(list(payloads[start : start + each]))
        for start in range(0, len(payloads), each)
    ]
    evaluate(joined)
    return joined


def _cold(size: Size, pages: Path, saved: Path) -> tuple[list[BenchRow], Peak]:
    """Restore from files, in the system's memory and dropped from it. Also measure the
    work of the model's thread when a restore was begun ahead, and when nothing is new."""
    bed = Bed(size, pages, hot=False)
    live, nbytes, rows = bed.live_arrays(), size.kv_bytes, []
    caches = make_prompt_cache(LayersOnly(size.layers))
    for cache, (keys, values) in zip(caches, live, strict=True):
        cache.keys, cache.values, cache.offset = keys, values, size.tokens
    save_prompt_cache(str(saved), caches)
    with bed.store, ThreadPoolExecutor(READ_THREADS) as pool:
        reads: dict[str, list[Work]] = {
            "raw reads": [RawRead(pages), RawRead(pages, pool)],
            "raw reads into new memory": [RawRead(pages, pool, new_memory=True)],
        }
        peers = {"mlx-lm load_prompt_cache": [partial(_load_with_mlx_lm, saved)]}
        states = {"in the file cache": lambda: None}
        if can_forget():
            states["file cache dropped"] = lambda: forget(pages.parent)
        for state, before in states.items():
            rows += beside(
                f"restore, cold, {state}",
                bed.restore,
                size.runs,
                limits=reads,
                peers=peers,
                nbytes=nbytes,
                before=before,
            )
        peak = _peak("restore, cold", bed)
        rows += beside(
            "restore, cold, begun ahead and ready",
            PreparedWork(bed.begin, lambda begun: bed.restore(begun=begun)),
            size.runs,
            peers={"a restore on the spot": [bed.restore]},
            nbytes=nbytes,
        )
        rows += beside(
            "commit of nothing new after a cold restore",
            PreparedWork(bed.restore, _commit_nothing),
            size.runs,
            peers={"a commit of everything": [PreparedWork(lambda: bed.again(live), bed.commit)]},
        )
    return rows, peak


def _load_with_mlx_lm(path: Path) -> Any:
    caches = load_prompt_cache(str(path))
    # The result is lazy: no data has been read by now.
    mx.eval([cache.state for cache in caches])
    return caches


def _commit_nothing(session: Session) -> None:
    result = session.commit()
    if result.pages:
        raise RuntimeError(f"{result.pages} pages were stored again")


def _peak(what: str, bed: Bed) -> Peak:
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    session = bed.restore()
    delivered = sum(int(cache.nbytes) for cache in session.prompt_cache)
    return Peak(what, mx.get_peak_memory() - before, delivered)


def _beside_a_model(size: Size, directory: Path) -> list[BenchRow]:
    model = small_model()
    tokens = [(7 * i * i + i) % VOCABULARY for i in range(size.model_tokens)]
    step = size.model_tokens // CHUNKS
    salts = itertools.count()
    settings = whole_settings(directory, 1 << 30, block_size=min(BLOCK_SIZE, step))
    with BlockStore(settings) as store:
        cache = PrefixCache(model, store)

        def with_cache() -> Session:
            # With a salt of its own nothing is restored.
            session = cache.session(tokens, salt=str(next(salts)))
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

        def restore() -> Session:
            session = cache.session(tokens, salt="0")
            if session.cached_tokens < len(tokens) - step:
                raise RuntimeError(f"{session.cached_tokens} tokens: {session.miss_reason}")
            return session

        (along,) = beside(
            f"prefill of {size.model_tokens:,} tokens in {CHUNKS} chunks, committing along",
            with_cache,
            size.runs,
            peers={"the same without a cache": [without]},
            # The fastest of each: a median moves by more than the few percent that are looked for.
            take=min,
        )
        restored = in_turn({"": restore}, size.runs)[""]
        return [
            along,
            BenchRow(
                f"restore, hot, {size.model_tokens:,} tokens of a small Qwen3",
                restored,
                "recomputing them",
                along.other,
            ),
        ]
