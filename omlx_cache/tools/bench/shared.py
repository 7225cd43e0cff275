"""What it costs the writers and the index that processes share one directory."""

from pathlib import Path

from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.shared_index import measure_shared_index
from omlx_cache.tools.bench.shared_processes import measure_shared_processes
from omlx_cache.tools.bench.shared_writes import measure_shared_writes
from omlx_cache.tools.bench.sizes import Size


def measure_shared(size: Size, directory: Path) -> list[Row]:
    """Writes, several processes, and a directory of many files."""
    # A store makes the last component of its directory only.
    for name in ("writes", "processes", "index"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    return [
        *measure_shared_writes(size, directory / "writes"),
        *measure_shared_processes(size, directory / "processes"),
        *measure_shared_index(size, directory / "index"),
    ]
