"""How work grows: over the tokens of a sequence, and over the pages of a store.

    python -m benchmarks.growth --markdown out.md --svg benchmarks/logs

Every figure is set beside its bound, measured in turns with it. A million pages take four minutes,
as many inodes on the disk, and a gibibyte of memory: `--pages 65536` is a small run.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import growth_pages
from benchmarks.arguments import at_least, file_to_write, folder
from benchmarks.plot import log_plot
from omlx_cache.store import READ_THREADS
from omlx_cache.tools.bench.bed import CHAIN, Bed, hash_chain
from omlx_cache.tools.bench.disk import RawRead
from omlx_cache.tools.bench.figures import BLOCK_SIZE, SIZES, BenchRow, PreparedWork, beside
from omlx_cache.tools.bench.report import format_ratio, format_time
from omlx_cache_storage.keys import as_tokens

SMALLEST_TOKENS = 4 * BLOCK_SIZE
SHAPE = replace(SIZES["normal"], layers=8, heads=2, head_dim=32)
"""2 KiB of KV a token: 512 MiB at 262,144."""
COUNTED = 16
"""Over how large a factor, up to the greatest length, steepness is taken: what is short is mostly
what a call costs by itself."""


class Grown(NamedTuple):
    """A row at `length` tokens or pages."""

    length: int
    row: BenchRow


Series = Mapping[str, Sequence[Grown]]
"""Rows by what they measure, each at growing lengths."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the tables, and write them and the plots."""
    args = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="omlx-growth-", dir=args.dir) as name:
        tokens = []
        for length in lengths(SMALLEST_TOKENS, args.tokens):
            print(f"{length:,} tokens ...", file=sys.stderr)
            rows = measure_tokens(length, Path(name) / str(length), args.runs)
            tokens += [Grown(length, row) for row in rows]
        pages, memory = _pages(args.pages, Path(name))
    told = markdown(tokens, pages, memory)
    sys.stdout.write(told)
    if args.markdown is not None:
        args.markdown.write_text(told, encoding="utf-8")
    if args.svg is not None:
        for across, grown in (("tokens", tokens), ("pages", pages)):
            (args.svg / f"growth-{across}.svg").write_text(svg(grown, across), encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, smallest, most in (
        ("tokens", SMALLEST_TOKENS, 1 << 18),
        ("pages", growth_pages.SMALLEST, 1 << 20),
    ):
        parser.add_argument(
            f"--{name}",
            type=at_least(smallest),
            default=most,
            metavar="MOST",
            help=f"measure {smallest:,} {name}, four times as many, and so on, up to these "
            "(default: %(default)s)",
        )
    parser.add_argument(
        "--runs", type=at_least(1), default=5, metavar="N", help="of those over tokens"
    )
    parser.add_argument(
        "--dir", type=folder, metavar="DIR", help="measure this disk (default: temporary files')"
    )
    parser.add_argument(
        "--markdown", type=file_to_write, metavar="FILE", help="write the tables there too"
    )
    parser.add_argument("--svg", type=folder, metavar="DIR", help="write both plots there")
    return parser


def lengths(smallest: int, largest: int) -> list[int]:
    """Return lengths up to the largest, each four times the one before."""
    return [smallest << 2 * n for n in range(largest.bit_length()) if smallest << 2 * n <= largest]


def measure_tokens(tokens: int, directory: Path, runs: int) -> list[BenchRow]:
    """Commit, restore and look up one sequence, each against its bound in turns."""
    size = replace(SHAPE, tokens=tokens, runs=runs)
    nbytes = size.kv_bytes
    hot = Bed(size, directory, durability="none")
    with hot.store:
        live = hot.live_arrays()
        copy = {"one memcpy into new memory": [np.full(nbytes, 1, np.uint8).copy]}
        commit = PreparedWork(lambda: hot.again(live), hot.commit)
        rows = beside("commit", commit, runs, limits=copy, nbytes=nbytes)
        hot.commit(hot.filled(live))
        hot.flush()
        rows += beside("restore, hot", hot.restore, runs, limits=copy, nbytes=nbytes)
        prompt: Any = as_tokens(hot.tokens)
        look_up, hashed = partial(hot.cache.lookup, prompt), {CHAIN: [partial(hash_chain, prompt)]}
        rows += beside("look-up", look_up, runs, limits=hashed)
    cold = Bed(size, directory, hot=False, durability="none")
    with cold.store, ThreadPoolExecutor(READ_THREADS) as pool:
        reads = {"raw reads into new memory": [RawRead(directory, pool, new_memory=True)]}
        return rows + beside("restore, cold", cold.restore, runs, limits=reads, nbytes=nbytes)


def _pages(most: int, directory: Path) -> tuple[list[Grown], dict[str, float]]:
    files = growth_pages.Directory(directory / "files")
    grown: list[Grown] = []
    memory: dict[str, float] = {}
    for pages in lengths(growth_pages.SMALLEST, most):
        print(f"{pages:,} pages ...", file=sys.stderr)
        for tier, measured in (
            ("cold", growth_pages.measure_cold(files, pages)),
            ("hot", growth_pages.measure_hot(pages)),
        ):
            grown += [Grown(pages, row) for row in measured.rows]
            memory[tier] = measured.bytes_a_page or memory[tier]
    return grown, memory


def by_series(grown: Sequence[Grown]) -> Series:
    """Return the rows sorted out by what they measure."""
    names = dict.fromkeys(each.row.what for each in grown)
    return {name: [each for each in grown if each.row.what == name] for name in names}


def steepness(rows: Sequence[Grown]) -> float | None:
    """Return with which power of the length our time grows; None for a single length."""
    greatest = max(each.length for each in rows)
    counted = [each for each in rows if COUNTED * each.length >= greatest]
    if len(counted) < 2:
        return None
    xs = [math.log(each.length) for each in counted]
    ys = [math.log(each.row.ours) for each in counted]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    products = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return products / sum((a - x) ** 2 for a in xs)


def in_words(power: float | None) -> str:
    """Say what a power means to who doubles a length."""
    if power is None:
        return "one length"
    limits = {0.25: "does not grow", 0.8: "less than linear", 1.2: "linear"}
    word = next((word for limit, word in limits.items() if power < limit), "more than linear")
    return f"{word}, power {power:.2f}"


def markdown(tokens: Sequence[Grown], pages: Sequence[Grown], memory: Mapping[str, float]) -> str:
    """Return two tables: a row for each thing measured, with our time and the ratio at its lengths;
    `memory` has the bytes a page by tier."""
    lines = [*_table(tokens, "tokens"), "", *_table(pages, "pages"), ""]
    lines += [
        f"Memory of what is known of a page, {tier} tier: {nbytes:,.0f} bytes."
        for tier, nbytes in memory.items()
    ]
    lines.append("In brackets: the time of what it is beside, divided by ours.")
    return "\n".join(lines) + "\n"


def _table(grown: Sequence[Grown], what: str) -> list[str]:
    counts = sorted({each.length for each in grown})
    heads = [f"{count:,} {what}" for count in counts]
    lines = [
        f"| what | beside | {' | '.join(heads)} | grows |",
        f"|---|---|{'--:|' * len(counts)}---|",
    ]
    for name, rows in by_series(grown).items():
        at = {each.length: each.row for each in rows}
        cells = [
            f"{format_time(at[count].ours)} ({format_ratio(at[count].ratio)})"
            if count in at
            else ""
            for count in counts
        ]
        grows = in_words(steepness(rows))
        lines.append(f"| {name} | {rows[0].row.compared_with} | {' | '.join(cells)} | {grows} |")
    return lines


def svg(grown: Sequence[Grown], across: str) -> str:
    """Return a plot: of each series our times as a line with dots, its bound's as a dashed one."""
    series = {
        name: (
            [(each.length, each.row.ours) for each in rows],
            [(each.length, each.row.other) for each in rows],
        )
        for name, rows in by_series(grown).items()
    }
    return log_plot(series, f"{across}; dashed: what each is set beside")


if __name__ == "__main__":
    raise SystemExit(main())
