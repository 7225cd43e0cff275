"""One of several processes that write to one directory: what each is told, and what it says.

`python -m benchmarks.shared_child DIRECTORY LIMIT` reads lines of JSON, each a list of
chains to write, and answers each with how many of their pages it wrote. Nobody else runs it.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from omlx_cache.tools.bench.shared_pages import KIB, pages_of, store_all
from omlx_cache_storage.cold.tier import ColdTier

PAGE_BYTES = 64 * KIB


def serve(tier: ColdTier, lines: Iterable[str], answers: TextIO) -> None:
    """Write what each line names: [[number of a chain, its blocks], ...]."""
    for line in lines:
        chains = [pages_of(number, blocks, PAGE_BYTES) for number, blocks in json.loads(line)]
        print(sum(store_all(tier, pages) for pages in chains), file=answers, flush=True)


def main(directory: str, limit: str) -> None:
    tier = ColdTier(Path(directory), int(limit))
    tier.open()
    print("ready", flush=True)
    try:
        serve(tier, sys.stdin, sys.stdout)
    finally:
        tier.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
