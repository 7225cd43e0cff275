"""What it costs to know a large directory that others change: following, and reading it again."""

import contextlib
import itertools
from pathlib import Path

from omlx_cache.tools.bench.chains import NAMESPACE, touch_page
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.shared_pages import KIB, pages_of, store_all
from omlx_cache.tools.bench.sizes import Size
from omlx_cache.tools.bench.timing import in_turn
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import LEDGER_FILE
from omlx_cache_storage.keys import KeyChain, as_tokens

LIMIT = 1 << 50
MOST_CHANGES = 1000
READING = "reading the directory"


def measure_shared_index(size: Size, directory: Path) -> list[Row]:
    """Follow what another store writes into a directory of many files, against opening it."""
    chain = KeyChain(NAMESPACE, as_tokens(range(size.files)), 1)
    for end in range(1, size.files + 1):
        touch_page(directory, chain, end)
    return index_rows(directory, size.files, min(size.runs, 3))


def index_rows(directory: Path, files: int, runs: int) -> list[Row]:
    """`measure_shared_index` for a directory of so many files that is there; leaves more in it."""
    ours, other = ColdTier(directory, LIMIT), ColdTier(directory, LIMIT)
    numbers = itertools.count(1)

    def read() -> None:
        tier = ColdTier(directory, LIMIT)
        tier.open()
        tier.close()
        if tier.usage().pages < files:
            raise RuntimeError(f"{tier.usage().pages} of {files} files were indexed")

    def read_again() -> None:
        # Whoever fell behind by more than the ledger holds is as far as one that lost it.
        (directory / LEDGER_FILE).unlink()
        ours.settle()
        if not ours.usage().pages >= files or ours.sharing.fell_behind:
            raise RuntimeError("the directory was not read again")

    reading = in_turn({"ours": read}, runs)["ours"]
    with contextlib.closing(ours), contextlib.closing(other):
        ours.open()
        other.open()
        asked = in_turn({"ours": ours.refresh}, 100)["ours"]
        rows = [Row(f"asking {files:,} files for changes, none", asked, READING, reading)]
        for count in (1, min(MOST_CHANGES, files)):

            def change(count: int = count) -> None:
                if store_all(other, pages_of(next(numbers), count, 4 * KIB)) != count:
                    raise RuntimeError("nothing new was written")

            times = in_turn({"ours": ours.refresh}, runs, before=change)
            what = f"taking in {count:,} new pages beside {files:,} files"
            rows.append(Row(what, times["ours"], READING, reading))
        again = in_turn({"ours": read_again}, runs)["ours"]
    return [*rows, Row(f"{files:,} files, after falling behind", again, READING, reading)]
