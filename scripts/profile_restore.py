"""Print the ten most expensive lines of a restore without bytes, and of a look-up, as Markdown.

    python scripts/profile_restore.py [tokens]

All threads' work is done on one, so that it is seen. Times are the processor's; the profiler
doubles them.
"""

import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.restore_overhead import LAYERS
from omlx_cache.tools.bench.sizes import SIZES

LINES = 10


class OnThisThread(Executor):
    """Runs what it is given at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def profile(what: str, bed: Bed, work: Callable[[], object]) -> None:
    """Print where the time of one run goes, after one that does not count."""
    pools = bed.store.copy_pool, bed.store.read_pool
    bed.store.copy_pool = bed.store.read_pool = OnThisThread()  # type: ignore[assignment]
    profiler = cProfile.Profile(time.thread_time)
    try:
        work()
        profiler.runcall(work)
    finally:
        bed.store.copy_pool, bed.store.read_pool = pools
    stats: Any = pstats.Stats(profiler)
    print(f"\n| {what}: {stats.total_tt * 1e3:.0f} ms | calls | ms |\n|---|--:|--:|")
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:LINES]
    for (file, _line, function), (_, calls, own, *_rest) in rows:
        function = function.partition(" of type object")[0]
        place = "" if file == "~" else f"`{Path(file).name}` "
        print(f"| {place}`{function}` | {calls:,} | {own * 1e3:.1f} |")


def main(tokens: int) -> None:
    size = replace(SIZES["normal"], layers=LAYERS, heads=1, head_dim=1, tokens=tokens)
    with tempfile.TemporaryDirectory() as directory:
        bed = Bed(size, Path(directory), durability="none")
        with bed.store:
            bed.commit(bed.filled(bed.live_arrays()))
            bed.store.flush(600)
            profile("restore, hot", bed, bed.restore)
            profile("look-up", bed, lambda: bed.cache.lookup(bed.tokens, salt=""))
        bed = Bed(size, Path(directory), hot=False, durability="none")
        with bed.store:
            profile("restore, cold", bed, bed.restore)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 131_072)
