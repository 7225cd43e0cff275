"""How commits, restores and look-ups grow with the tokens of a sequence."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.growth_rows import GrowthRow
from omlx_cache.store import READ_THREADS
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.chains import CHAIN, hash_chain
from omlx_cache.tools.bench.raw import RawCopy, RawRead
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, SIZES
from omlx_cache.tools.bench.timing import Work, in_turn
from omlx_cache_storage.keys import as_tokens

SMALLEST = 4 * BLOCK_SIZE
SHAPE = replace(SIZES["normal"], layers=8, heads=2, head_dim=32)
"""2 KiB of KV a token: 512 MiB at 262,144."""
COPY = "one memcpy into new memory"
READS = "raw reads into new memory"
FLUSH_SECONDS = 600.0


def measure_tokens(tokens: int, directory: Path, runs: int) -> list[GrowthRow]:
    """Commit, restore and look up one sequence, each against its bound in turns."""
    size = replace(SHAPE, tokens=tokens, runs=runs)
    hot = Bed(size, directory, durability="none")
    with hot.store:
        rows = [_commit(hot), *_in_memory(hot)]
    cold = Bed(size, directory, hot=False, durability="none")
    with cold.store, ThreadPoolExecutor(READ_THREADS) as pool:
        bare = RawRead(directory, pool, new_memory=True)
        times = in_turn({"ours": cold.restore, "bare": bare}, runs)
        rows.append(
            Row("restore, cold", times["ours"], READS, times["bare"], size.kv_bytes, limit=True)
        )
    return [GrowthRow(tokens, row) for row in rows]


def _commit(bed: Bed) -> Row:
    """Time commits under salts of their own, the writer busy behind them."""
    live = bed.live_arrays()
    salts = itertools.count()
    spent: list[float] = []

    def commit() -> None:
        salt = f"run {next(salts)}"
        session = bed.filled(live, salt)
        began = time.perf_counter()
        bed.commit(session)
        spent.append(time.perf_counter() - began)
        bed.store.flush(FLUSH_SECONDS)
        bed.cache.clear(salt=salt)

    bare = RawCopy(bed.size.kv_bytes, new_memory=True)
    times = in_turn({"ours": commit, "bare": bare}, bed.size.runs)
    bed.commit(bed.filled(live))
    if not bed.store.flush(FLUSH_SECONDS):
        raise RuntimeError("the disk took no pages")
    ours = median(spent[1:])
    return Row("commit", ours, COPY, times["bare"], bed.size.kv_bytes, limit=True)


def _in_memory(bed: Bed) -> list[Row]:
    tokens: Any = as_tokens(bed.tokens)
    bare = RawCopy(bed.size.kv_bytes, new_memory=True)
    works: dict[str, Work] = {
        "restore": bed.restore,
        "bare": bare,
        "look-up": lambda: bed.cache.lookup(tokens, salt=""),
        "hash": lambda: hash_chain(tokens),
    }
    times = in_turn(works, bed.size.runs)
    return [
        Row("restore, hot", times["restore"], COPY, times["bare"], bed.size.kv_bytes, limit=True),
        Row("look-up", times["look-up"], CHAIN, times["hash"], limit=True),
    ]
