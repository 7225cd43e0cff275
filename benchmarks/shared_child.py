"""One of several processes that write to one directory: what each is told, and what it says.

`python -m benchmarks.shared_child DIRECTORY LIMIT` reads lines of JSON, each a list of
chains to write, and answers each with how many of their pages it wrote. Nobody else runs it.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from omlx_cache.tools.bench.bed import pages_of
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.page import Page

PAGE_BYTES = 64 << 10
DOCUMENT = {"model": "none: a benchmark of the directory"}


def store_all(tier: ColdTier, pages: Iterable[Page]) -> int:
    """Write pages as used now; return how many were new. What others have used later may keep them
    out; raises RuntimeError for a page that is not there for another reason."""
    results = [tier.write(page, time.time_ns(), DOCUMENT) for page in pages]
    if not {*results} <= {"written", "present", "refused"}:
        raise RuntimeError(f"a page was not stored: {sorted({*results})}")
    return results.count("written")


def main(directory: str, limit: str) -> None:
    """Write what each line names: [[number of a chain, its blocks], ...]."""
    with contextlib.closing(ColdTier(Path(directory), int(limit))) as tier:
        tier.open()
        print("ready", flush=True)
        for line in sys.stdin:
            chains = [pages_of(number, blocks, PAGE_BYTES) for number, blocks in json.loads(line)]
            print(sum(store_all(tier, pages) for pages in chains), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
