"""What it costs to look for the pages of other processes: restores, look-ups that hit and misses.

Beside each: the same with a store that never asks whether anything has changed.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

from omlx_cache.adapters.base import PAGED
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.bed import Bed, Unshared
from omlx_cache.tools.bench.chains import NAMESPACE, touch_page
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.shared_pages import KIB, chain_of, pages_of, store_all
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, Size
from omlx_cache.tools.bench.timing import Work, in_turn
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.keys import KeyChain

UNSHARED = "the same, asking for no changes"
LIMIT = 1 << 40
RUNS = 5
"""So many times a size's runs: the fastest of each count, as a median moves by more than the few
percent that are looked for."""
ASKED = 1000
"""How often it is asked in one measured run whether anything has changed."""
CHANGES = (1, 100)


def measure_shared_restore(size: Size, directory: Path) -> list[Row]:
    """Restore the same pages from the disk with sharing and without."""
    written = Bed(size, directory, durability="none")
    with written.store:
        written.commit(written.filled(written.live_arrays()))
        if not written.store.flush(600.0):
            raise RuntimeError("the disk took no pages")
    shared = Bed(size, directory, hot=False, durability="none")
    unshared = Bed(size, directory, hot=False, durability="none", kind=Unshared)
    with shared.store, unshared.store:
        works: dict[str, Work] = {"ours": shared.restore, "other": unshared.restore}
        times = in_turn(works, RUNS * size.runs, take=min)
    what = "restore, cold, of a directory that others use"
    return [Row(what, times["ours"], UNSHARED, times["other"], size.kv_bytes)]


def measure_shared_lookup(size: Size, directory: Path) -> list[Row]:
    """Look a long prefix up: all known; not to its end, with nothing changed; and after another
    process has written something else."""
    blocks = size.chain_tokens // BLOCK_SIZE
    known = chain_of(1, blocks)
    for block in range(1, blocks + 1):
        touch_page(directory, known, block * BLOCK_SIZE)
    longer = chain_of(1, blocks + 1)
    settings = CacheSettings(
        cold_dir=directory,
        cold_bytes=LIMIT,
        hot_bytes=0,
        hot_cache_only=False,
        block_size=BLOCK_SIZE,
        min_free_bytes=0,
        durability="none",
        socket="off",
    )
    with BlockStore(settings) as shared, Unshared(settings) as unshared:
        rows = _look_ups(size, known, longer, shared, unshared)
        other = ColdTier(directory, LIMIT)
        other.open()
        try:
            rows += [_news(size, count, longer, shared, unshared, other) for count in CHANGES]
        finally:
            other.close()
    return rows


def _look_ups(
    size: Size, known: KeyChain, longer: KeyChain, shared: BlockStore, unshared: BlockStore
) -> list[Row]:
    """Nothing changes: a hit, a miss, and the one question that a miss asks."""
    runs = RUNS * size.runs
    found = size.chain_tokens
    rows = []
    for what, chain in (
        (f"look-up of {found:,} tokens, all known", known),
        (f"look-up of {found:,} tokens and a block that nobody has", longer),
    ):
        works: dict[str, Work] = {
            "ours": _look_up(chain, shared, found),
            "other": _look_up(chain, unshared, found),
        }
        times = in_turn(works, runs, take=min)
        rows.append(Row(what, times["ours"], UNSHARED, times["other"]))

    def ask() -> None:
        for _ in range(ASKED):
            shared.refresh()

    asked = in_turn({"ours": ask}, size.runs, take=min)["ours"] / ASKED
    what = "what a miss asks: has anything changed"
    return [*rows, Row(what, asked, "that look-up", rows[-1].other)]


def _news(
    size: Size,
    count: int,
    longer: KeyChain,
    shared: BlockStore,
    unshared: BlockStore,
    other: ColdTier,
) -> Row:
    """Another store writes so many pages of other chains before each look-up."""
    numbers = itertools.count(2 + 1_000_000 * count)

    def change() -> None:
        shared.refresh()
        store_all(other, pages_of(next(numbers), count, 4 * KIB))

    works: dict[str, Work] = {
        "ours": _look_up(longer, shared, size.chain_tokens),
        "other": _look_up(longer, unshared, size.chain_tokens),
    }
    times = in_turn(works, size.runs, before=change, take=min)
    pages = "a page" if count == 1 else f"{count} pages"
    what = f"look-up of {size.chain_tokens:,} tokens and a block more, others wrote {pages}"
    return Row(what, times["ours"], UNSHARED, times["other"])


def _look_up(chain: KeyChain, store: BlockStore, found: int) -> Callable[[], None]:
    tokens = chain.tokens

    def work() -> None:
        chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
        point = find_restore_point(chain, (PAGED,), store, limit=len(tokens), tiers=store)
        if point.position != found:
            raise RuntimeError(f"the look-up ended at {point.position}")

    return work
