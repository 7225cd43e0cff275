"""How look-ups, evictions and start-up grow with the pages that a store holds.

The pages are those of conversations of 16,384 tokens, without bytes: measured is what is known of
them.
"""

import os
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from omlx_cache.adapters.base import PAGED
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.tools.bench.bed import (
    CHAIN,
    NAMESPACE,
    chain_of,
    ends_of,
    hash_chain,
    page_file,
    pages_of,
    touch_page,
)
from omlx_cache.tools.bench.disk import SCAN, list_files
from omlx_cache.tools.bench.figures import BLOCK_SIZE, BenchRow, beside, seconds
from omlx_cache_daemon.changing import change_budget
from omlx_cache_storage.cold.small_files import Budget
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import ENTRY_BYTES
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page
from omlx_cache_storage.tiers import Tier

BLOCKS = 64
SMALLEST = 16 * BLOCKS
RUNS = 3
"""Each of them, and one that does not count, evicts `BLOCKS` pages and unlinks as many files: half
of the fewest."""
MANY = 200_000
"""From so many pages on a start-up takes seconds, and one is enough."""
UNLINK, ORDERED = "bare unlink", "a bare OrderedDict"
Made = TypeVar("Made")


class Measured(NamedTuple):
    """The rows of a tier with so many pages, and the bytes of memory that each takes there."""

    rows: list[BenchRow]
    bytes_a_page: float


class Directory:
    """Empty page files of conversations, more of them as they are asked for; of the latest, number
    `conversation`, some may be missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = 0
        self.conversation = -1
        self._began_ns = time.time_ns() - (1 << 50)
        self._made = self._make()

    def grow(self, pages: int) -> None:
        self.files += sum(1 for _ in islice(self._made, pages - self.files))

    def open(self) -> ColdTier:
        """Return a tier on the files; raises RuntimeError if it does not know all of them."""
        tier = ColdTier(self.path, 1 << 50)
        tier.open()
        if tier.usage().pages != self.files:
            raise RuntimeError(f"{tier.usage().pages} of {self.files} files were indexed")
        return tier

    def _make(self) -> Iterator[Path]:
        for self.conversation in count():
            stamp_ns = self._began_ns + self.conversation
            chain = chain_of(self.conversation, BLOCKS)
            for end in ends_of(chain):
                path = touch_page(self.path, chain, end)
                os.utime(path, ns=(stamp_ns, stamp_ns))
                yield path


def measure_cold(directory: Directory, pages: int) -> Measured:
    """Measure a cold tier on so many files."""
    directory.grow(pages)
    bare = {SCAN: [partial(list_files, directory.path)]}
    rows = beside("start-up", directory.open, RUNS if pages < MANY else 1, limits=bare)
    tier, each = _weighed(directory.open, pages)
    rows += _look_up("look-up, cold", tier, directory.conversation - 1)
    return Measured([*rows, _evict_files(tier, directory)], each)


def measure_hot(pages: int) -> Measured:
    """Measure a hot tier that is full of so many pages."""
    tier, each = _weighed(lambda: _full(pages), pages)
    last = pages // BLOCKS - 1
    rows = _look_up("look-up, hot", tier, last)
    return Measured([*rows, _evict_pages(tier, last + 1)], each)


def _look_up(what: str, tier: Tier, number: int) -> list[BenchRow]:
    """Time the look-up of a conversation of which every block is there."""
    view = tier
    tokens = chain_of(number, BLOCKS).tokens

    def ours() -> None:
        chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
        point = find_restore_point(chain, (PAGED,), view, limit=len(tokens))
        if point.position != len(tokens):
            raise RuntimeError(f"the look-up ended at {point.position}")

    return beside(what, ours, 7 * RUNS, limits={CHAIN: [partial(hash_chain, tokens)]})


def _instead(budget: Budget, _: Budget | None) -> Budget:
    return budget


def _evict_files(tier: ColdTier, directory: Directory) -> BenchRow:
    """Time evictions by a budget that sinks, and unlinking as many files of the same directory."""
    spent: list[float] = []
    bare: list[float] = []
    for turn in range(RUNS + 2):
        before = tier.usage()
        budget = Budget(before.nbytes - BLOCKS * ENTRY_BYTES, "quota")
        change_budget(directory.path, partial(_instead, budget))
        took = seconds(tier.settle)
        evicted = before.pages - tier.usage().pages
        if not evicted:
            # What directories take was an estimate, and was counted instead.
            continue
        spent.append(took / evicted)
        chain = chain_of(directory.conversation - 2 - turn, BLOCKS)
        files = [page_file(directory.path, chain, end) for end in ends_of(chain)]
        bare.append(seconds(partial(_unlink, files)) / len(files))
        directory.files -= evicted + len(files)
    change_budget(directory.path, partial(_instead, Budget(1 << 50, "quota")))
    return _evictions("cold", spent, UNLINK, bare)


def _unlink(files: list[Path]) -> None:
    for file in files:
        os.unlink(file)


def _evict_pages(tier: HotTier, first: int) -> BenchRow:
    """Time the putting of pages into a full tier, and the same in a dictionary that knows ages."""
    known = OrderedDict.fromkeys(held.id for held in tier.entries())

    def replace(pages: list[Page]) -> None:
        for page in pages:
            known.popitem(last=False)
            known[page.meta.id] = None

    spent: list[float] = []
    bare: list[float] = []
    for number in range(first, first + RUNS + 1):
        pages = pages_of(number, BLOCKS, 1)
        spent.append(seconds(partial(_put, tier, pages, number)) / BLOCKS)
        bare.append(seconds(partial(replace, pages)) / BLOCKS)
    if tier.usage().evicted_pages != len(spent) * BLOCKS:
        raise RuntimeError(f"{tier.usage().evicted_pages} pages were evicted")
    return _evictions("hot", spent, ORDERED, bare)


def _evictions(tier: str, spent: list[float], name: str, bare: list[float]) -> BenchRow:
    what = f"eviction of a page, {tier}"
    return BenchRow(what, median(spent[1:]), name, median(bare[1:]), limit=True)


def _full(pages: int) -> HotTier:
    tier = HotTier(pages)
    for number in range(pages // BLOCKS):
        _put(tier, pages_of(number, BLOCKS, 1), number)
    return tier


def _put(tier: HotTier, pages: Iterable[Page], number: int) -> None:
    for page in pages:
        room = tier.reserve(page.meta.nbytes)
        if not room:
            raise RuntimeError("no room could be made")
        tier.put(page, room, dirty=False, stamp_ns=(1 << 40) + number)


def _weighed(make: Callable[[], Made], pages: int) -> tuple[Made, float]:
    """Return what was made, and the bytes of Python's memory that it takes a page; 0 for `MANY`,
    where counting takes minutes."""
    if pages >= MANY:
        return make(), 0.0
    tracemalloc.start()
    try:
        made = make()
        return made, tracemalloc.get_traced_memory()[0] / pages
    finally:
        tracemalloc.stop()
