"""What it costs that processes share one directory: look-ups, writes, the index, many writers.

    python -m benchmarks.shared [SIZE]

Beside each: the same where nobody is asked and nobody is told, or a process that is alone.
"""

import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.shared_child import PAGE_BYTES, store_all
from omlx_cache.adapters.base import PAGED
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.bed import NAMESPACE, Bed, chain_of, ends_of, pages_of, touch_page
from omlx_cache.tools.bench.disk import RawWrite
from omlx_cache.tools.bench.figures import (
    BLOCK_SIZE,
    SIZES,
    BenchRow,
    PreparedWork,
    Size,
    beside,
    in_turn,
)
from omlx_cache_storage.cold.ledger import WAIT_SECONDS, Ledger
from omlx_cache_storage.cold.ledger_records import Change
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import LEDGER_FILE
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page

KIB, MIB = 1 << 10, 1 << 20
LIMIT = 1 << 40
HEADER_BYTES = 16 * KIB
"""As much as a page's file has before the payload."""
RUNS = 5
"""So many times a size's runs: the fastest of each count, as a median moves by more than the few
percent that are looked for."""
ASKED = 1000
"""How often it is asked in one measured run whether anything has changed."""
PROCESSES, CHAIN_BLOCKS = 8, 8
UNSHARED, UNTOLD = "the same, asking for no changes", "the same, telling nobody"
READING, ALONE = "reading the directory", "one process alone"
Chains = Sequence[tuple[int, int]]
ROOT = Path(__file__).parents[1]


def measure_shared(size: Size, directory: Path) -> Iterator[BenchRow]:
    """Yield the rows of restores, look-ups, writes, an index that others change, and a crowd."""
    # A store makes the last component of its directory only.
    for name in ("restores", "look-ups", "writes", "index", "crowd"):
        (directory / name).mkdir()
    yield from _restores(size, directory / "restores")
    yield from _look_ups(size, directory / "look-ups" / "pages")
    for name, nbytes, count in (
        ("4 KiB", 4 * KIB, max(4, size.files // 40)),
        ("1 MiB", MIB, max(2, size.files // 400)),
    ):
        place = directory / "writes" / name
        yield from _writes(f"{count:,} pages of {name}", nbytes, count, size.runs, place)
    yield from _index(size, directory / "index" / "pages")
    yield from _crowds(size, directory / "crowd")


class Unshared(BlockStore):
    """A store that looks after nobody else's pages: what sharing a directory costs is beside it."""

    def refresh(self, timeout: float = 0.0) -> bool:
        return False


def _restores(size: Size, directory: Path) -> list[BenchRow]:
    """Restore the same pages from the disk with sharing and without."""
    written = Bed(size, directory, durability="none")
    with written.store:
        written.commit(written.filled(written.live_arrays()))
        written.flush()
    shared = Bed(size, directory, hot=False)
    unshared = Bed(size, directory, hot=False, kind=Unshared)
    with shared.store, unshared.store:
        return beside(
            "restore, cold, of a directory that others use",
            shared.restore,
            RUNS * size.runs,
            peers={UNSHARED: [unshared.restore]},
            nbytes=size.kv_bytes,
            take=min,
        )


def _look_ups(size: Size, directory: Path) -> Iterator[BenchRow]:
    """Look a long prefix up: all known; not to its end, with nothing changed; and after another
    process has written something else."""
    blocks = size.chain_tokens // BLOCK_SIZE
    known, longer = chain_of(1, blocks), chain_of(1, blocks + 1)
    for end in ends_of(known):
        touch_page(directory, known, end)
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
    with (
        BlockStore(settings) as shared,
        Unshared(settings) as unshared,
        contextlib.closing(ColdTier(directory, LIMIT)) as other,
    ):
        other.open()
        what, runs = f"look-up of {size.chain_tokens:,} tokens", RUNS * size.runs
        for more, chain in ((", all known", known), (" and a block that nobody has", longer)):
            ours = partial(_look_up, chain, shared, size.chain_tokens)
            theirs = partial(_look_up, chain, unshared, size.chain_tokens)
            rows = beside(what + more, ours, runs, peers={UNSHARED: [theirs]}, take=min)
            yield from rows
        asked = in_turn({"": partial(_ask, shared)}, size.runs, take=min)[""] / ASKED
        yield BenchRow(
            "what a miss asks: has anything changed", asked, "that look-up", rows[0].other
        )
        numbers = itertools.count(2)

        def change(count: int) -> None:
            shared.refresh()
            store_all(other, pages_of(next(numbers), count, 4 * KIB))

        for count in (1, 100):
            told = f"{what} and a block more, others wrote {count} pages"
            yield from beside(
                told,
                ours,
                size.runs,
                peers={UNSHARED: [theirs]},
                before=partial(change, count),
                take=min,
            )


def _look_up(chain: KeyChain, store: BlockStore, found: int) -> None:
    asked = KeyChain(NAMESPACE, chain.tokens, BLOCK_SIZE)
    point = find_restore_point(asked, (PAGED,), store, limit=len(asked), tiers=store)
    if point.position != found:
        raise RuntimeError(f"the look-up ended at {point.position}")


def _ask(store: BlockStore) -> None:
    for _ in range(ASKED):
        store.refresh()


class Silent(Ledger):
    """A ledger that takes no lock, tells nothing and asks for nothing once it is `silent`."""

    silent = False

    @contextlib.contextmanager
    def held(self, seconds: float = WAIT_SECONDS) -> Iterator[None]:
        with contextlib.nullcontext() if self.silent else super().held(seconds):
            yield

    def news(self) -> list[Change] | None:
        return [] if self.silent else super().news()

    def append(self, changes: Iterable[Change]) -> None:
        if not self.silent:
            super().append(changes)


class Untold(ColdTier):
    """A tier that keeps what it does to itself, as if nobody else used the directory."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        super().__init__(directory, limit_bytes)
        self._silent = self.sharing.ledger = Silent(directory, self._fs)

    def open(self, budget: Callable[[int], int] | None = None) -> None:
        super().open(budget)
        self._silent.silent = True


def _writes(what: str, nbytes: int, count: int, runs: int, directory: Path) -> list[BenchRow]:
    """Write pages, against a tier that takes no lock and keeps no ledger, and against files that
    are written and renamed."""
    directory.mkdir()
    numbers = itertools.count()
    raw = RawWrite(directory / "raw", count, nbytes + HEADER_BYTES, "none")

    def prepare() -> list[Page]:
        return pages_of(next(numbers), count, nbytes)

    with (
        contextlib.closing(ColdTier(directory / "told", LIMIT)) as told,
        contextlib.closing(Untold(directory / "untold", LIMIT)) as untold,
    ):
        told.open()
        untold.open()
        return beside(
            f"writing {what}",
            PreparedWork(prepare, partial(store_all, told)),
            runs,
            limits={"bare files of that size": [PreparedWork(raw.clear, raw)]},
            peers={UNTOLD: [PreparedWork(prepare, partial(store_all, untold))]},
            nbytes=count * nbytes,
        )


def _index(size: Size, directory: Path) -> Iterator[BenchRow]:
    """Follow what another store writes into a directory of many files, against opening it."""
    files, runs = size.files, min(size.runs, 3)
    chain, numbers = chain_of(0, files, 1), itertools.count(1)
    for end in ends_of(chain):
        touch_page(directory, chain, end)
    ours, other = ColdTier(directory, LIMIT), ColdTier(directory, LIMIT)

    def read() -> None:
        tier = ColdTier(directory, LIMIT)
        tier.open()
        tier.close()
        if tier.usage().pages < files:
            raise RuntimeError(f"{tier.usage().pages} of {files} files were indexed")

    def read_again() -> None:
        # A process that is behind by more than the ledger holds reads the directory again, as here.
        (directory / LEDGER_FILE).unlink()
        ours.settle()
        if ours.sharing.fell_behind:
            raise RuntimeError("the directory was not read again")

    def change() -> None:
        store_all(other, pages_of(next(numbers), count, 4 * KIB))

    reading = in_turn({"": read}, runs)[""]
    with contextlib.closing(ours), contextlib.closing(other):
        ours.open()
        other.open()
        asked = in_turn({"": ours.refresh}, 100)[""]
        yield BenchRow(f"asking {files:,} files for changes, none", asked, READING, reading)
        for count in (1, min(1000, files)):
            taken = in_turn({"": ours.refresh}, runs, before=change)[""]
            what = f"taking in {count:,} new pages beside {files:,} files"
            yield BenchRow(what, taken, READING, reading)
        again = in_turn({"": read_again}, runs)[""]
        yield BenchRow(f"{files:,} files, after falling behind", again, READING, reading)


class Crowd:
    """Processes that have one directory open; each writes what it is told to, all at once."""

    def __init__(self, directory: Path, limit_bytes: int, count: int) -> None:
        command = [sys.executable, "-m", "benchmarks.shared_child"]
        command += [str(directory), str(limit_bytes)]
        pipe = subprocess.PIPE
        self._children = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
            for _ in range(count)
        ]
        for child in self._children:
            self._answer(child)

    def write(self, chains: Sequence[Chains]) -> int:
        """Have each process write its chains; return how many pages were written in all."""
        for child, its in zip(self._children, chains, strict=True):
            assert child.stdin is not None
            child.stdin.write(json.dumps(its) + "\n")
            child.stdin.flush()
        return sum(int(self._answer(child)) for child in self._children)

    def _answer(self, child: "subprocess.Popen[str]") -> str:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"a process that writes pages has ended: {child.wait()}")
        return line

    def close(self) -> None:
        """End the processes and wait for them."""
        for child in self._children:
            child.communicate()


def _crowds(size: Size, directory: Path) -> Iterator[BenchRow]:
    """Offer pages with 8 processes to a directory that has room for a quarter of them: chains of
    their own, and then the same one, which is stored once."""
    each = max(1, size.files // 80 // CHAIN_BLOCKS)
    total, same = PROCESSES * each * CHAIN_BLOCKS, each * CHAIN_BLOCKS
    limit = total * (PAGE_BYTES + HEADER_BYTES) // 4
    numbers = itertools.count(1)

    def own(count: int) -> Chains:
        return [(next(numbers), CHAIN_BLOCKS) for _ in range(count)]

    def write(crowd: Crowd, chains: Callable[[], Sequence[Chains]], least: int, most: int) -> None:
        # A page that comes late is refused where those of others were used after it.
        written = crowd.write(chains())
        if not least <= written <= most:
            raise RuntimeError(f"{written} pages were written, not {least} to {most}")

    with (
        contextlib.closing(Crowd(directory / "many", limit, PROCESSES)) as many,
        contextlib.closing(Crowd(directory / "one", limit, 1)) as one,
    ):
        what = f"{total:,} pages of 64 KiB by {PROCESSES} processes, room for a quarter"
        runs = min(size.runs, 3)
        together = partial(write, many, lambda: [own(each) for _ in range(PROCESSES)], 1, total)
        alone = partial(write, one, lambda: [own(PROCESSES * each)], 1, total)
        yield from beside(what, together, runs, peers={ALONE: [alone]}, nbytes=total * PAGE_BYTES)
        what = f"the same {same:,} pages by each of {PROCESSES} processes, stored once"
        together = partial(write, many, lambda: [[(next(numbers), same)]] * PROCESSES, same, same)
        alone = partial(write, one, lambda: [[(next(numbers), same)]], same, same)
        yield from beside(what, together, runs, peers={ALONE: [alone]}, nbytes=same * PAGE_BYTES)


def main(size: str = "small") -> None:
    with tempfile.TemporaryDirectory(prefix="omlx-cache-bench-") as directory:
        for row in measure_shared(SIZES[size], Path(directory)):
            print(f"{row.ratio:9.2f} {row.what}, beside {row.compared_with}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
