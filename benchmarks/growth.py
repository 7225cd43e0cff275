"""How work grows: over the tokens of a sequence, and over the pages of a store.

    python -m benchmarks.growth --markdown out.md --svg docs

Every figure is set beside its bound, measured in turns with it. A million pages take four minutes,
as many inodes on the disk, and a gibibyte of memory: `--pages 65536` is a small run.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import growth_pages, growth_tokens
from benchmarks.arguments import at_least, file_to_write, folder
from benchmarks.growth_plot import svg
from benchmarks.growth_report import Series, by_series, markdown
from benchmarks.growth_rows import GrowthRow, lengths


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the tables, and write them and the plots."""
    args = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="omlx-growth-", dir=args.dir) as name:
        tokens = _tokens(args.tokens, Path(name), args.runs)
        pages, memory = _pages(args.pages, Path(name))
    told = markdown(tokens, pages, memory)
    sys.stdout.write(told)
    if args.markdown is not None:
        args.markdown.write_text(told, encoding="utf-8")
    if args.svg is not None:
        plots = {"tokens": tokens, "pages": pages}
        for across, series in plots.items():
            (args.svg / f"growth-{across}.svg").write_text(svg(series, across), encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, smallest, most in (
        ("tokens", growth_tokens.SMALLEST, 1 << 18),
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


def _tokens(most: int, directory: Path, runs: int) -> Series:
    rows: list[GrowthRow] = []
    for length in lengths(growth_tokens.SMALLEST, most):
        _say(f"{length:,} tokens")
        rows += growth_tokens.measure_tokens(length, directory / str(length), runs)
    return by_series(rows)


def _pages(most: int, directory: Path) -> tuple[Series, dict[str, float]]:
    files = growth_pages.Directory(directory / "files")
    rows: list[GrowthRow] = []
    memory: dict[str, float] = {}
    for pages in lengths(growth_pages.SMALLEST, most):
        _say(f"{pages:,} pages")
        for tier, measured in (
            ("cold", growth_pages.measure_cold(files, pages)),
            ("hot", growth_pages.measure_hot(pages)),
        ):
            rows += measured.rows
            memory[tier] = measured.bytes_a_page or memory[tier]
    return by_series(rows), memory


def _say(what: str) -> None:
    print(f"{what} ...", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
