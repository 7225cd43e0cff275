"""What each durability level costs the writer: until `flush` says that all is on the disk."""

import itertools
from functools import partial
from pathlib import Path

from omlx_cache.arrays.mlxio import Array
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import Size
from omlx_cache.tools.bench.timing import Work, in_turn
from omlx_cache_storage.cold.disk import Durability

LEVELS: tuple[Durability, ...] = ("none", "fsync", "full")
FLUSH_SECONDS = 600.0


def measure_durability(size: Size, directory: Path) -> list[Row]:
    """Commit and flush the same KV at each level, in turns, against `none`."""
    beds = {level: Bed(size, directory / level, durability=level) for level in LEVELS}
    live = beds["none"].live_arrays()
    salts = itertools.count()
    try:
        works: dict[str, Work] = {
            level: partial(_write, bed, live, salts) for level, bed in beds.items()
        }
        times = in_turn(works, min(size.runs, 3))
    finally:
        for bed in beds.values():
            bed.store.close()
    return [
        Row(f"commit and flush, {level}", times[level], "the same with none", times["none"],
            size.kv_bytes)
        for level in LEVELS[1:]
    ]  # fmt: skip


def _write(bed: Bed, live: list[tuple[Array, Array]], salts: "itertools.count[int]") -> None:
    salt = f"run {next(salts)}"
    bed.commit(bed.filled(live, salt))
    if not bed.store.flush(FLUSH_SECONDS):
        raise RuntimeError("the disk took no pages")
    bed.cache.clear(salt=salt)
