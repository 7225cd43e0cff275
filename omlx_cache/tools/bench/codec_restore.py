"""What a codec makes of a restore: the same KV delivered dense, beside the same KV stored dense."""

import os
from pathlib import Path
from statistics import median

from omlx_cache.session import Session
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.raw import can_forget
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import Size
from omlx_cache.tools.bench.timing import seconds
from omlx_cache_storage.format import planes

FLUSH_SECONDS = 600.0
CODECS = ("dense", "affine8", "k8v4", "affine4", "turbo4", "turbo3", "turbo2")
DENSE = "stored dense"


def measure_codecs(size: Size, directory: Path) -> list[Row]:
    """Commit, restore from memory and restore from the disk with each codec, one after the other.

    Rates are those of the dense bytes that come out. The files are dropped from the system's
    memory before each cold restore where the system allows it.
    """
    found = {name: _times(size, directory / name, codec=name) for name in CODECS}
    if planes.available():
        found["zstd on disk"] = _times(size, directory / "zstd", cold_codec="zstd")
    dense = found.pop("dense")
    return [
        Row(f"{what}, {name}", ours, DENSE, dense[what], size.kv_bytes)
        for name, times in found.items()
        for what, ours in times.items()
    ]


def _times(
    size: Size, directory: Path, codec: str = "dense", cold_codec: str = "dense"
) -> dict[str, float]:
    bed = Bed(size, directory, codec=codec, cold_codec=cold_codec)
    with bed.store:
        live = bed.live_arrays()
        # Kernels are compiled on first use: a commit under another salt pays for that.
        bed.commit(bed.filled(live, "first"))
        commit = _commit_seconds(bed, bed.filled(live))
        del live
        hot = [seconds(lambda: bed.restore().abort()) for _ in range(size.runs)]
        if not bed.store.flush(FLUSH_SECONDS):
            raise RuntimeError("the disk took no pages")
    cold = [_cold(size, directory, codec, cold_codec) for _ in range(size.runs)]
    return {"commit": commit, "restore, hot": median(hot), "restore, cold": median(cold)}


def _commit_seconds(bed: Bed, session: Session) -> float:
    return seconds(lambda: bed.commit(session))


def _cold(size: Size, directory: Path, codec: str, cold_codec: str) -> float:
    if can_forget():
        for path in directory.rglob("*.safetensors"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    bed = Bed(size, directory, codec=codec, cold_codec=cold_codec)
    with bed.store:
        return seconds(lambda: bed.restore().abort())
