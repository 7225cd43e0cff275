"""What a codec makes of a restore: dense bytes delivered a second, beside the same KV stored dense."""

from pathlib import Path

from omlx_cache.bench.bed import Bed
from omlx_cache.bench.raw import forget
from omlx_cache.bench.rows import Peak, Row
from omlx_cache.bench.sizes import BLOCK_SIZE, Size
from omlx_cache.bench.timing import seconds
from omlx_cache_storage import planes

FLUSH_SECONDS = 600.0
PAGE_CODECS = ("dense", "affine8", "k8v4", "affine4", "turbo4", "turbo3", "turbo2")


def measure_codecs(size: Size, directory: Path) -> tuple[list[Row], list[Peak]]:
    """Commit, restore hot and restore from the disk with each codec; medians of the size's runs."""
    found = {name: _one(size, directory / name, codec=name) for name in PAGE_CODECS}
    if planes.available():
        found["zstd on disk"] = _one(size, directory / "zstd", cold_codec="zstd")
    rows = []
    for name, times in found.items():
        for what, ours in times.items():
            other = found["dense"][what]
            if name != "dense":
                rows.append(Row(f"{what}, {name}", ours, "dense", other, size.kv_bytes))
    return rows, []


def _one(size: Size, directory: Path, **codecs: str) -> dict[str, float]:
    bed = Bed(size, directory, **codecs)
    with bed.store:
        live = bed.live_arrays()
        session = bed.filled(live)
        commit = seconds(lambda: bed.commit(session))
        del live, session
        hot = _median([seconds(lambda: bed.restore().abort()) for _ in range(size.runs)])
        if not bed.store.flush(FLUSH_SECONDS):
            raise RuntimeError("the disk took no pages")
    cold = []
    for _ in range(size.runs):
        forget(directory)
        with Bed(size, directory, **codecs).store as store:
            del store
        again = Bed(size, directory, **codecs)
        with again.store:
            cold.append(seconds(lambda bed=again: bed.restore().abort()))
    return {"commit": commit, "restore, hot": hot, "restore, cold": _median(cold)}


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


def pages_of(size: Size) -> int:
    """Return the pages that a size's tokens make."""
    return size.tokens // BLOCK_SIZE
