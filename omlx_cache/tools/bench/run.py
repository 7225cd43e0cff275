"""Times what the cache does beside the limits of the machine, in one run."""

from collections.abc import Callable
from pathlib import Path

from omlx_cache.tools.bench.along import measure_along
from omlx_cache.tools.bench.codec_restore import measure_codecs
from omlx_cache.tools.bench.commit_overhead import measure_commit_overhead
from omlx_cache.tools.bench.durability import measure_durability
from omlx_cache.tools.bench.machine import describe
from omlx_cache.tools.bench.others import measure_recompute, measure_scan
from omlx_cache.tools.bench.remote_rows import measure_remote_rows
from omlx_cache.tools.bench.restore_overhead import measure_lookup, measure_overhead
from omlx_cache.tools.bench.rows import Results
from omlx_cache.tools.bench.shared_lookup import measure_shared_lookup, measure_shared_restore
from omlx_cache.tools.bench.sizes import OVERHEAD_SIZES, Size
from omlx_cache.tools.bench.transfer import measure_cold, measure_hot


def run(size: Size, workspace: Path, say: Callable[[str], None]) -> Results:
    """Measure everything and return it; takes disk for some copies of the KV in `workspace`."""
    pages, saved = workspace / "pages", workspace / "mlx-lm.safetensors"
    say("restore and commit, hot")
    rows, peaks = measure_hot(size, pages)
    say("restore, cold")
    cold_rows, cold_peaks = measure_cold(size, pages, saved)
    say("while a model computes")
    along_rows = measure_along(size, pages, workspace / "along")
    say("codecs")
    codec_rows = measure_codecs(size, workspace / "codecs")
    say("durability")
    durability_rows = measure_durability(size, workspace / "durability")
    say("recomputing")
    recompute_rows = measure_recompute(size, workspace / "model")
    say("overhead of the host")
    overhead_rows = measure_overhead(size, workspace / "overhead")
    say("look-up and start-up")
    lookup_rows = measure_lookup(size, workspace / "chain")
    scan_rows = measure_scan(size, workspace / "scan")
    say("overhead of commits")
    commit_rows = measure_commit_overhead(OVERHEAD_SIZES[size.name], workspace / "commits")
    say("one directory for several processes")
    shared_rows = measure_shared_restore(size, workspace / "shared restore")
    shared_rows += measure_shared_lookup(size, workspace / "shared look-up")
    say("stores that machines share")
    remote_rows = measure_remote_rows(size, workspace / "remote", say)
    rows += [*cold_rows, *along_rows, *codec_rows, *durability_rows]
    rows += [*recompute_rows, *overhead_rows, *lookup_rows, *scan_rows, *commit_rows, *shared_rows]
    rows += remote_rows
    return Results(size.name, size.kv_bytes, describe(), tuple(rows), (*peaks, *cold_peaks))
