"""What the host pays for pages and layers: restores and look-ups of next to no bytes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from omlx_cache.adapters.base import PAGED, STATE, GroupSpec
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.chains import CHAIN, NAMESPACE, hash_chain, touch_page
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.sizes import BLOCK_SIZE, Size
from omlx_cache.tools.bench.timing import in_turn
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.keys import KeyChain, as_tokens
from omlx_cache_storage.tiers import TierView

LAYERS = 32
FLUSH_SECONDS = 600.0
WINDOW = GroupSpec("window", 4 * BLOCK_SIZE)
SNAPSHOT_BLOCKS = 16
Keeps = Callable[[GroupSpec, int], bool]
LAYOUTS: dict[str, tuple[tuple[GroupSpec, ...], Keeps]] = {
    "": ((PAGED,), lambda group, block: True),
    ", with windows": ((PAGED, WINDOW), lambda group, block: True),
    ", with snapshots": (
        (PAGED, STATE),
        lambda group, block: group is PAGED or block % SNAPSHOT_BLOCKS == 0,
    ),
}


def measure_overhead(size: Size, directory: Path) -> list[Row]:
    """Restore caches of one byte or two a token and layer, against hashing the same tokens."""
    rows = []
    for tokens in (size.chain_tokens // 4, size.chain_tokens):
        tiny = replace(size, layers=LAYERS, heads=1, head_dim=1, tokens=tokens)
        pages = directory / str(tokens)
        bed = Bed(tiny, pages, durability="none")
        with bed.store:
            bed.commit(bed.filled(bed.live_arrays()))
            if not bed.store.flush(FLUSH_SECONDS):
                raise RuntimeError("the disk took no pages")
            rows.append(_restore_row("hot", bed))
        bed = Bed(tiny, pages, hot=False, durability="none")
        with bed.store:
            rows.append(_restore_row("cold", bed))
    return rows


def _restore_row(tier: str, bed: Bed) -> Row:
    tokens = as_tokens(bed.tokens)
    times = in_turn({"ours": bed.restore, "hash": lambda: hash_chain(tokens)}, bed.size.runs)
    what = f"restore, {tier}, {bed.size.tokens:,} tokens of {LAYERS} layers without bytes"
    return Row(what, times["ours"], CHAIN, times["hash"], limit=True)


def measure_lookup(size: Size, directory: Path) -> list[Row]:
    """Find a long prefix of which every block is known, against hashing the same tokens."""
    tokens = as_tokens([(17 * i) % 150_000 for i in range(size.chain_tokens + 1)])
    rows = []
    for number, (layout, (groups, keeps)) in enumerate(LAYOUTS.items()):
        chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
        view = TierView([_directory_of(chain, groups, keeps, directory / str(number))])

        def look_up(groups: Sequence[GroupSpec] = groups, view: TierView = view) -> None:
            chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
            point = find_restore_point(chain, groups, view, limit=len(tokens) - 1)
            if point.position != size.chain_tokens:
                raise RuntimeError(f"the look-up ended at {point.position}")

        times = in_turn({"ours": look_up, "hash": lambda: hash_chain(tokens)}, size.runs)
        what = f"look-up of {size.chain_tokens:,} tokens{layout}"
        rows.append(Row(what, times["ours"], CHAIN, times["hash"], limit=True))
    return rows


def _directory_of(
    chain: KeyChain, groups: Sequence[GroupSpec], keeps: Keeps, directory: Path
) -> ColdTier:
    """Make empty page files for the blocks of a chain, the last of all groups, and open a tier."""
    last = len(chain) // chain.block_size
    for block in range(1, last + 1):
        for group in groups:
            if block == last or keeps(group, block):
                touch_page(directory, chain, block * chain.block_size, group)
    cold = ColdTier(directory, 1 << 40)
    cold.open()
    return cold
