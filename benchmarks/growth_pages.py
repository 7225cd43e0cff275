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

import numpy as np

from benchmarks.growth_rows import GrowthRow
from omlx_cache.adapters.base import PAGED
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.tools.bench.chains import CHAIN, NAMESPACE, hash_chain, page_file, touch_page
from omlx_cache.tools.bench.others import SCAN, list_files
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import BLOCK_SIZE
from omlx_cache.tools.bench.timing import in_turn, seconds
from omlx_cache_daemon.changing import change_budget
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import ENTRY_BYTES
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageMeta, TensorSpec
from omlx_cache_storage.tiers import Tier, TierView

BLOCKS = 64
SMALLEST = 16 * BLOCKS
RUNS = 3
"""Each of them, and one that does not count, evicts `BLOCKS` pages and unlinks as many files: half
of the fewest."""
MANY = 200_000
"""From so many pages on a start-up takes seconds, and one is enough."""
UNLINK, ORDERED = "bare unlink", "a bare OrderedDict"
_BYTE = (TensorSpec("", "U8", (1,)),)
Made = TypeVar("Made")


class Measured(NamedTuple):
    """The rows of a tier with so many pages, and the bytes of memory that each takes there."""

    rows: list[GrowthRow]
    bytes_a_page: float


class Directory:
    """Empty page files of conversations, more of them as they are asked for."""

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
            chain = conversation(self.conversation)
            for end in _ends(chain):
                path = touch_page(self.path, chain, end)
                os.utime(path, ns=(stamp_ns, stamp_ns))
                yield path


def conversation(number: int) -> KeyChain:
    """Return the hash chain of one of many prompts of `BLOCKS` blocks."""
    tokens = np.arange(BLOCKS * BLOCK_SIZE, dtype="<i8")
    tokens[0] = -number
    return KeyChain(NAMESPACE, tokens, BLOCK_SIZE)


def measure_cold(directory: Directory, pages: int) -> Measured:
    """Measure a cold tier on so many files."""
    directory.grow(pages)
    works = {"ours": directory.open, "bare": lambda: list_files(directory.path)}
    times = in_turn(works, RUNS if pages < MANY else 1)
    tier, each = _weighed(directory.open, pages)
    rows = [
        Row("start-up", times["ours"], SCAN, times["bare"], limit=True),
        _look_up("look-up, cold", tier, directory.conversation),
        _evict_files(tier, directory),
    ]
    return Measured([GrowthRow(pages, row) for row in rows], each)


def measure_hot(pages: int) -> Measured:
    """Measure a hot tier that is full of so many pages."""
    tier, each = _weighed(lambda: _full(pages), pages)
    last = pages // BLOCKS - 1
    rows = [_look_up("look-up, hot", tier, last), _evict_pages(tier, last + 1)]
    return Measured([GrowthRow(pages, row) for row in rows], each)


def _look_up(what: str, tier: Tier, number: int) -> Row:
    """Time the look-up of a conversation of which every block is there."""
    view = TierView([tier])
    tokens = conversation(number).tokens

    def ours() -> None:
        chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
        point = find_restore_point(chain, (PAGED,), view, limit=len(tokens))
        if point.position != len(tokens):
            raise RuntimeError(f"the look-up ended at {point.position}")

    times = in_turn({"ours": ours, "bare": lambda: hash_chain(tokens)}, 7 * RUNS)
    return Row(what, times["ours"], CHAIN, times["bare"], limit=True)


def _instead(budget: Budget, _: Budget | None) -> Budget:
    return budget


def _evict_files(tier: ColdTier, directory: Directory) -> Row:
    """Time evictions by a budget that sinks, and unlinking as many files of the same directory."""
    spent: list[float] = []
    bare: list[float] = []
    for turn in range(RUNS + 1):
        before = tier.usage()
        budget = Budget(before.nbytes - BLOCKS * ENTRY_BYTES, "quota")
        change_budget(directory.path, partial(_instead, budget))
        took = seconds(tier.settle)
        evicted = before.pages - tier.usage().pages
        spent.append(took / evicted)
        chain = conversation(directory.conversation - 1 - turn)
        files = [page_file(directory.path, chain, end) for end in _ends(chain)]
        bare.append(_unlink(files) / len(files))
        directory.files -= evicted + len(files)
    return _evictions("cold", spent, UNLINK, bare)


def _unlink(files: list[Path]) -> float:
    return seconds(lambda: list(map(os.unlink, files)))


def _evict_pages(tier: HotTier, first: int) -> Row:
    """Time the putting of pages into a full tier, and the same in a dictionary that knows ages."""
    known = OrderedDict.fromkeys(held.id for held in tier.entries())

    def replace(pages: list[Page]) -> None:
        for page in pages:
            known.popitem(last=False)
            known[page.meta.id] = None

    spent: list[float] = []
    bare: list[float] = []
    for number in range(first, first + RUNS + 1):
        pages = list(_pages(number))
        spent.append(seconds(partial(_put, tier, pages, number)) / BLOCKS)
        bare.append(seconds(partial(replace, pages)) / BLOCKS)
    if tier.usage().evicted_pages != len(spent) * BLOCKS:
        raise RuntimeError(f"{tier.usage().evicted_pages} pages were evicted")
    return _evictions("hot", spent, ORDERED, bare)


def _evictions(tier: str, spent: list[float], name: str, bare: list[float]) -> Row:
    what = f"eviction of a page, {tier}"
    return Row(what, median(spent[1:]), name, median(bare[1:]), limit=True)


def _full(pages: int) -> HotTier:
    tier = HotTier(pages)
    for number in range(pages // BLOCKS):
        _put(tier, _pages(number), number)
    return tier


def _put(tier: HotTier, pages: Iterable[Page], number: int) -> None:
    for page in pages:
        room = tier.reserve(page.meta.nbytes)
        if not room:
            raise RuntimeError("no room could be made")
        tier.put(page, room, dirty=False, stamp_ns=(1 << 40) + number)


def _pages(number: int) -> Iterator[Page]:
    chain = conversation(number)
    for end in _ends(chain):
        key, parent = chain.key(end), chain.parent(end)
        meta = PageMeta(NAMESPACE, key, parent, PAGED.name, end, BLOCK_SIZE, False, "dense", _BYTE)
        yield Page(meta, b"\0")


def _ends(chain: KeyChain) -> range:
    return range(BLOCK_SIZE, len(chain) + 1, BLOCK_SIZE)


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
