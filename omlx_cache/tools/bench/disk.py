"""Measurements of the disk: pages that are durable, and a directory of many files."""

from functools import partial
from pathlib import Path

from omlx_cache.adapters.base import PAGED
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.session import Session
from omlx_cache.tools.bench.bed import (
    CHAIN,
    NAMESPACE,
    Bed,
    chain_of,
    ends_of,
    hash_chain,
    touch_page,
)
from omlx_cache.tools.bench.figures import (
    BLOCK_SIZE,
    BenchRow,
    Measured,
    PreparedWork,
    Size,
    beside,
)
from omlx_cache.tools.bench.limits import RawWrite, list_files
from omlx_cache_storage.cold.disk import Durability
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.tiers import TierView

LEVELS: tuple[Durability, ...] = ("none", "fsync", "full")
LIMIT = 1 << 40
SCAN = "bare scandir and stat"


def measure_disk(size: Size, directory: Path) -> Measured:
    writes = [_written(size, directory, level) for level in LEVELS]
    return Measured([*writes, *_index(size, directory / "index")])


def _written(size: Size, directory: Path, level: Durability) -> BenchRow:
    """Commit and flush the same KV, beside bare files of the same size that are synced alike. The
    files of the run before are deleted first: else the system would write them meanwhile."""
    bed = Bed(size, directory / level, durability=level)
    blocks = size.tokens // BLOCK_SIZE
    raw = RawWrite(directory / f"bare {level}", blocks, size.kv_bytes // blocks, level)
    with bed.store:
        live = bed.live_arrays()

        def write(session: Session) -> None:
            bed.commit(session)
            bed.flush()

        (row,) = beside(
            f"commit and flush, {level}",
            PreparedWork(partial(bed.again, live), write),
            size.runs,
            limits={f"bare files, {level}": [PreparedWork(raw.clear, raw)]},
            nbytes=size.kv_bytes,
        )
    return row


def _index(size: Size, directory: Path) -> list[BenchRow]:
    """Open a cold tier on many files, and find a prefix in it."""
    chain = chain_of(1, size.chain_tokens // BLOCK_SIZE)
    others = chain_of(2, max(1, size.files - len(ends_of(chain))), 1)
    for known in (chain, others):
        for end in ends_of(known):
            touch_page(directory, known, end)
    files = len(ends_of(chain)) + len(others)

    def scan() -> ColdTier:
        tier = ColdTier(directory, LIMIT)
        tier.open()
        if tier.usage().pages != files:
            raise RuntimeError(f"{tier.usage().pages} of {files} files were indexed")
        return tier

    rows = beside(
        f"start-up on {files:,} files",
        scan,
        min(size.runs, 3),
        limits={SCAN: [partial(list_files, directory)]},
    )
    view, tokens = TierView([scan()]), chain.tokens

    def look_up() -> None:
        chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
        point = find_restore_point(chain, (PAGED,), view, limit=len(tokens))
        if point.position != len(tokens):
            raise RuntimeError(f"the lookup ended at {point.position}")

    return rows + beside(
        f"lookup of {size.chain_tokens:,} tokens",
        look_up,
        size.runs,
        limits={CHAIN: [partial(hash_chain, tokens)]},
    )
