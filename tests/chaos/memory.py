"""How much memory this process takes, as the system counts it."""

import resource
import sys
from pathlib import Path


def resident_bytes() -> int:
    """Return the resident bytes; where the system does not say, the most there ever were."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


MLX_THREAD_BYTES = 32 * 1024
"""What MLX keeps of each thread that ever evaluated an array: an OS thread, for good."""


def owned_bytes() -> int:
    """Return the resident bytes without what MLX keeps of threads that have ended."""
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.is_dir() else 0
    return resident_bytes() - threads * MLX_THREAD_BYTES
