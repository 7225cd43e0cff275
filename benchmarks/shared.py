"""What it costs the writers and the index that processes share one directory.

python -m benchmarks.shared [SIZE]
"""

import sys
import tempfile
from pathlib import Path

from benchmarks.shared_index import measure_shared_index
from benchmarks.shared_processes import measure_shared_processes
from benchmarks.shared_writes import measure_shared_writes
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import SIZES, Size


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


if __name__ == "__main__":
    size = SIZES[sys.argv[1] if len(sys.argv) > 1 else "small"]
    with tempfile.TemporaryDirectory(prefix="omlx-cache-bench-") as directory:
        for row in measure_shared(size, Path(directory)):
            print(f"{row.ratio:7.2f} {row.what}, beside {row.compared_with}")
