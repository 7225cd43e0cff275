"""Restores and commits against memcpy, raw reads and mlx-lm's own prompt-cache files."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache

from omlx_cache.arrays.mlxio import Array, allocate_payload
from omlx_cache.store import READ_THREADS
from omlx_cache.tools.bench.bed import Bed, LayersOnly
from omlx_cache.tools.bench.raw import Concatenation, RawCopy, RawRead, can_forget
from omlx_cache.tools.bench.rows import Peak, Row
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, Size
from omlx_cache.tools.bench.timing import Work, in_turn, seconds

MEMCPY = "one memcpy"
NEW_MEMCPY = "one memcpy into new memory"
CONCATENATION = "one MLX concatenation"
RAW = "raw reads"
NEW_RAW = "raw reads into new memory"
PEER = "mlx-lm load_prompt_cache"
FLUSH_SECONDS = 600.0


def measure_hot(size: Size, directory: Path) -> tuple[list[Row], list[Peak]]:
    """Commit and restore within one process; leaves the pages in `directory`."""
    bed = Bed(size, directory)
    with bed.store:
        live = bed.live_arrays()
        rows = _commits(bed, live)
        bed.commit(bed.filled(live))
        if not bed.store.flush(FLUSH_SECONDS):
            raise RuntimeError("the disk took no pages")
        del live
        blocks = size.tokens // BLOCK_SIZE
        payloads = [allocate_payload(size.kv_bytes // blocks) for _ in range(blocks)]
        works: dict[str, Work] = {
            "ours": bed.restore,
            **_copies(size),
            CONCATENATION: Concatenation(payloads),
        }
        times = in_turn(works, size.runs)
        ours = times.pop("ours")
        rows += [
            Row("restore, hot", ours, name, time, size.kv_bytes, limit=True)
            for name, time in times.items()
        ]
        return rows, [_peak("restore, hot", bed)]


def _commits(bed: Bed, live: list[tuple[Array, Array]]) -> list[Row]:
    """Time commits under salts of their own, each with the writer busy behind it."""
    salts = itertools.count()
    spent: list[float] = []

    def commit() -> None:
        salt = f"run {next(salts)}"
        session = bed.filled(live, salt)
        spent.append(seconds(lambda: bed.commit(session)))
        bed.store.flush(FLUSH_SECONDS)
        bed.cache.clear(salt=salt)

    flat = [array.reshape(-1) for pair in live for array in pair]
    works: dict[str, Work] = {
        "": commit,
        **_copies(bed.size),
        CONCATENATION: Concatenation(flat),
    }
    times = in_turn(works, bed.size.runs)
    ours = sorted(spent[1:])[(len(spent) - 1) // 2]
    what = "commit, on the caller's thread"
    return [
        Row(what, ours, name, times[name], bed.size.kv_bytes, limit=True)
        for name in (MEMCPY, NEW_MEMCPY, CONCATENATION)
    ]


def _copies(size: Size) -> dict[str, Work]:
    return {
        MEMCPY: RawCopy(size.kv_bytes),
        NEW_MEMCPY: RawCopy(size.kv_bytes, new_memory=True),
    }


def measure_cold(size: Size, directory: Path, saved: Path) -> tuple[list[Row], list[Peak]]:
    """Restore from the files that `measure_hot` left, in the system's memory and dropped from it.

    `saved` is where mlx-lm's own prompt-cache file goes; its name ends in .safetensors. The faster
    of one and of as many threads as the store uses counts as the raw read.
    """
    bed = Bed(size, directory, hot=False)
    _save_with_mlx_lm(bed, saved)
    rows = []
    with bed.store, ThreadPoolExecutor(READ_THREADS) as pool:
        one, several = RawRead(directory, None), RawRead(directory, pool)
        works: dict[str, Work] = {
            "ours": bed.restore,
            "one": one,
            "several": several,
            NEW_RAW: RawRead(directory, pool, new_memory=True),
            PEER: lambda: _load_with_mlx_lm(saved),
        }
        states: list[tuple[str, Work | None]] = [("in the file cache", None)]
        if can_forget():
            states.append(("file cache dropped", lambda: one.forget([saved])))
        for state, before in states:
            times = in_turn(works, size.runs, before)
            times[RAW] = min(times["one"], times["several"])
            rows += [
                Row(
                    f"restore, cold, {state}",
                    times["ours"],
                    name,
                    times[name],
                    size.kv_bytes,
                    limit=name != PEER,
                )
                for name in (RAW, NEW_RAW, PEER)
            ]
        return rows, [_peak("restore, cold", bed)]


def _peak(what: str, bed: Bed) -> Peak:
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    session = bed.restore()
    delivered = sum(int(cache.nbytes) for cache in session.prompt_cache)
    return Peak(what, mx.get_peak_memory() - before, delivered)


def _save_with_mlx_lm(bed: Bed, path: Path) -> None:
    caches = make_prompt_cache(LayersOnly(bed.size.layers))
    for cache, (keys, values) in zip(caches, bed.live_arrays(), strict=True):
        cache.keys, cache.values, cache.offset = keys, values, bed.size.tokens
    save_prompt_cache(str(path), caches)


def _load_with_mlx_lm(path: Path) -> Any:
    """Load and evaluate: what it returns is lazy, and no data has been read by then."""
    caches = load_prompt_cache(str(path))
    mx.eval([cache.state for cache in caches])
    return caches
