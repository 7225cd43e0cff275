"""What several processes write into one directory together, beside one that has it alone."""

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

from benchmarks.shared_child import PAGE_BYTES
from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.shared_pages import KIB
from omlx_cache.tools.bench.sizes import Size
from omlx_cache.tools.bench.timing import in_turn

PROCESSES = 8
ROOT = Path(__file__).parents[1]
CHAIN_BLOCKS = 8
FILE_BYTES = PAGE_BYTES + 16 * KIB
ALONE = "one process alone"
Chains = Sequence[tuple[int, int]]


class Crowd:
    """Processes that have one directory open; each writes what it is told to, all at once."""

    def __init__(self, directory: Path, limit_bytes: int, count: int) -> None:
        module = "benchmarks.shared_child"
        command = [sys.executable, "-m", module, str(directory), str(limit_bytes)]
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


def measure_shared_processes(size: Size, directory: Path) -> list[Row]:
    """Offer pages with 8 processes to a directory that has room for a quarter of them: chains of
    their own, and then the same one, which is stored once."""
    each = max(1, size.files // 80 // CHAIN_BLOCKS)
    total = PROCESSES * each * CHAIN_BLOCKS
    limit = total * FILE_BYTES // 4
    many = Crowd(directory / "many", limit, PROCESSES)
    one = Crowd(directory / "one", limit, 1)
    with contextlib.closing(many), contextlib.closing(one):
        numbers = itertools.count(1)
        runs = min(size.runs, 3)
        return [
            _own_chains(many, one, numbers, each, runs),
            _same_chain(many, one, numbers, each, runs),
        ]


def _own_chains(many: Crowd, one: Crowd, numbers: Iterator[int], each: int, runs: int) -> Row:
    total = PROCESSES * each * CHAIN_BLOCKS

    def chains(count: int) -> Chains:
        return [(next(numbers), CHAIN_BLOCKS) for _ in range(count)]

    # A page that comes late is refused where those of others were used after it.
    def together() -> None:
        _check(many.write([chains(each) for _ in range(PROCESSES)]), range(1, total + 1))

    def alone() -> None:
        _check(one.write([chains(PROCESSES * each)]), range(1, total + 1))

    what = f"{total:,} pages of 64 KiB by {PROCESSES} processes, room for a quarter"
    return _row(what, together, alone, runs, total)


def _same_chain(many: Crowd, one: Crowd, numbers: Iterator[int], each: int, runs: int) -> Row:
    total = each * CHAIN_BLOCKS

    def together() -> None:
        number = next(numbers)
        _check(many.write([[(number, total)]] * PROCESSES), [total])

    def alone() -> None:
        _check(one.write([[(next(numbers), total)]]), [total])

    what = f"the same {total:,} pages by each of {PROCESSES} processes, stored once"
    return _row(what, together, alone, runs, total)


def _row(
    what: str, together: Callable[[], None], alone: Callable[[], None], runs: int, pages: int
) -> Row:
    times = in_turn({"ours": together, "other": alone}, runs)
    return Row(what, times["ours"], ALONE, times["other"], pages * PAGE_BYTES)


def _check(written: int, expected: Container[int]) -> None:
    if written not in expected:
        raise RuntimeError(f"{written} pages were written instead of {expected}")
