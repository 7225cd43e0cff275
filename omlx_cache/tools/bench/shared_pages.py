"""Pages for the benchmarks of a shared directory: any number of chains of no meaning."""

import time
from collections.abc import Iterable

import numpy as np

from omlx_cache.tools.bench.chains import NAMESPACE
from omlx_cache.tools.bench.sizes import BLOCK_SIZE
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageMeta, TensorSpec

KIB, MIB = 1024, 1024 * 1024
DOCUMENT = {"model": "none: a benchmark of the directory"}


def chain_of(number: int, blocks: int) -> KeyChain:
    """Return one of many hash chains, which have no block in common."""
    tokens = np.arange(blocks * BLOCK_SIZE, dtype="<i8")
    tokens[0] = -number
    return KeyChain(NAMESPACE, tokens, BLOCK_SIZE)


def pages_of(number: int, blocks: int, nbytes: int) -> list[Page]:
    """Return the pages of a chain, root first; all share one payload of `nbytes`."""
    chain = chain_of(number, blocks)
    payload = bytes(nbytes)
    tensors = (TensorSpec("0.keys", "U8", (1, nbytes)),)
    return [
        Page(
            PageMeta(
                namespace=NAMESPACE,
                key=chain.key(end),
                parent=chain.parent(end),
                group="paged",
                position=end,
                held=BLOCK_SIZE,
                tail=False,
                codec="dense",
                tensors=tensors,
            ),
            payload,
        )
        for end in range(BLOCK_SIZE, len(chain) + 1, BLOCK_SIZE)
    ]


def store_all(tier: ColdTier, pages: Iterable[Page]) -> int:
    """Write pages as used now; return how many were new. What others have used later may keep them
    out; raises RuntimeError for a page that is not there for another reason."""
    results = [tier.write(page, time.time_ns(), DOCUMENT) for page in pages]
    if not {*results} <= {"written", "present", "refused"}:
        raise RuntimeError(f"a page was not stored: {sorted({*results})}")
    return results.count("written")
