"""Benchmark of the working caches: growth, windows, reads, copies, slack.

    python -m omlx_cache.tools.bench.working_caches --tokens 4096,16384 --format md|json

Runs on every MLX back end. Compare rows of one run: times are this machine's.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path

import mlx.core as mx

from . import caches_growth, caches_reads
from .caches_probe import Row

DEFAULT_TOKENS = (4_096, 16_384)

SECTIONS: dict[str, Callable[[int], Iterator[Row]]] = {
    "update": caches_growth.update_loop,
    "forward": caches_growth.forward_pass,
    "rotating": caches_growth.rotating,
    "attention": caches_reads.attention,
    "copies": caches_reads.copies,
}


@dataclass(frozen=True, slots=True)
class Report:
    """One run: where, with what, and every row in order."""

    device: str
    mlx: str
    mlx_lm: str
    rows: tuple[Row, ...]


def run(
    tokens: Sequence[int] = DEFAULT_TOKENS,
    json_path: str | Path | None = None,
    *,
    sections: Sequence[str] = (*SECTIONS, "slack"),
    progress: Callable[[Row], None] = lambda row: None,
) -> Report:
    """Measure and return every row; writes them to `json_path` as well, when given.

    tokens: context lengths, multiples of 512 and at least 2,048.
    """
    for count in tokens:
        if count < caches_growth.WINDOW_CHUNK or count % caches_growth.CHUNK:
            raise ValueError(f"tokens must be multiples of 512, 2048 or more, got {count}")
    rows = []
    for row in _measured(tokens, sections):
        progress(row)
        rows.append(row)
    report = Report(_device(), _version("mlx"), _version("mlx-lm"), tuple(rows))
    if json_path is not None:
        Path(json_path).write_text(json.dumps(asdict(report), indent=2) + "\n")
    return report


def to_markdown(report: Report) -> str:
    """Return one table per section."""
    lines = [f"{report.device}; mlx {report.mlx}, mlx-lm {report.mlx_lm}."]
    for section, group in groupby(report.rows, lambda row: row.section):
        rows = list(group)
        names = list(rows[0].figures)
        lines += ["", f"**{section}**", "", _line(["tokens", "variant", *names])]
        lines.append(_line(["--:", "---", *["--:"] * len(names)]))
        for row in rows:
            cells = [_figure(row.figures[name]) for name in names]
            lines.append(_line([f"{row.tokens:,}", row.variant, *cells]))
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; progress goes to standard error."""
    parser = argparse.ArgumentParser(prog="python -m omlx_cache.tools.bench.working_caches")
    parser.add_argument("--tokens", type=_counts, default=DEFAULT_TOKENS, metavar="N,N")
    parser.add_argument("--format", choices=("md", "json"), default="md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    parser.add_argument(
        "--sections",
        type=lambda text: tuple(text.split(",")),
        default=(*SECTIONS, "slack"),
        metavar="NAME,NAME",
        help=f"of {', '.join((*SECTIONS, 'slack'))} (default: all)",
    )
    args = parser.parse_args(argv)
    unknown = set(args.sections) - {*SECTIONS, "slack"}
    if unknown:
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    try:
        report = run(args.tokens, args.json, sections=args.sections, progress=_say)
    except ValueError as error:
        parser.error(str(error))
    if args.format == "json":
        sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        sys.stdout.write(to_markdown(report))
    return 0


def _measured(tokens: Sequence[int], sections: Sequence[str]) -> Iterator[Row]:
    for name, measure in SECTIONS.items():
        if name not in sections:
            continue
        measured = [row for count in tokens for row in measure(count)]
        # Rows of one table stand together, whatever order they were measured in.
        order = list(dict.fromkeys(row.section for row in measured))
        yield from sorted(measured, key=lambda row: order.index(row.section))
    if "rotating" in sections:
        yield from caches_growth.rotating_forward()
    if "slack" in sections:
        yield from caches_reads.slack()


def _device() -> str:
    info = mx.device_info() if hasattr(mx, "device_info") else {}
    name = info.get("device_name") or info.get("architecture") or "unknown device"
    return f"{mx.default_device()}, {name}"


def _version(package: str) -> str:
    return metadata.version(package)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _say(row: Row) -> None:
    sys.stderr.write(f"{row.section}, {row.tokens:,} tokens, {row.variant}\n")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    raise SystemExit(main())
