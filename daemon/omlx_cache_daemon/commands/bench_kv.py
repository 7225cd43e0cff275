"""`omlx-cache bench-kv`: what each KV codec saves, costs and loses."""

import argparse
import math
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache_daemon.errors import OK, CommandError, UsageError
from omlx_cache_daemon.options import add_format_option, positive_count
from omlx_cache_daemon.render import print_json, table, uses_styles

if TYPE_CHECKING:
    from omlx_cache.tools.bench.kv_codecs import BenchReport
    from omlx_cache.tools.bench.kv_run import BenchOptions


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "bench-kv",
        help="compare the KV codecs in size, error and speed",
        description="Encodes and decodes keys and values with every codec: synthetic ones, with "
        "and without outlier channels, or a model's own, and then the next-token distributions "
        "are compared too. Restore rates are computed from a measured disk rate.",
    )
    parser.add_argument("--model", metavar="PATH_OR_ID", help="an mlx-lm model (default: none)")
    parser.add_argument("--prompt-file", type=Path, metavar="FILE", help="the model's prompt")
    parser.add_argument("--codecs", metavar="A,B,...", help="rows to measure (default: all)")
    parser.add_argument("--tokens", type=positive_count, default=1024, metavar="N")
    parser.add_argument("--heads", type=positive_count, default=8, metavar="N")
    parser.add_argument("--head-dim", type=positive_count, default=128, metavar="N")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument(
        "--dense-last",
        type=int,
        metavar="N",
        help="last layers of the model to leave dense (default: as the codec does)",
    )
    parser.add_argument("--disk-dir", type=Path, metavar="DIR", help="measure the disk here")
    parser.add_argument("--disk-gbps", type=_rate, metavar="X", help="take this disk rate instead")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    from omlx_cache.tools.bench.kv_html import render_html
    from omlx_cache.tools.bench.kv_run import run as measure
    from omlx_cache.tools.bench.kv_table import as_json

    try:
        report = measure(_options(args))
        if args.html is not None:
            args.html.write_text(render_html(report), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CommandError(str(error)) from error
    if args.format == "json":
        print_json(as_json(report))
    else:
        sys.stdout.write(_text(report))
    return OK


def _options(args: argparse.Namespace) -> "BenchOptions":
    from omlx_cache.tools.bench.kv_codecs import ROW_NAMES
    from omlx_cache.tools.bench.kv_data import QUERY_TOKENS
    from omlx_cache.tools.bench.kv_run import BenchOptions

    asked = args.codecs.split(",") if args.codecs else list(ROW_NAMES)
    unknown = sorted(set(asked) - set(ROW_NAMES))
    if unknown:
        raise UsageError(f"no such codec: {', '.join(unknown)}; there are {', '.join(ROW_NAMES)}")
    if args.dense_last is not None and args.dense_last < 0:
        raise UsageError(f"--dense-last is negative: {args.dense_last}")
    if args.model is not None and args.tokens < 2 * QUERY_TOKENS:
        raise UsageError(
            f"--tokens {args.tokens} is too few for a model: at least {2 * QUERY_TOKENS}"
        )
    disk_dir = args.disk_dir or Path(tempfile.gettempdir())
    if args.disk_gbps is None and not disk_dir.is_dir():
        raise CommandError(f"--disk-dir: there is no directory {disk_dir}")
    return BenchOptions(
        codecs=tuple(name for name in ROW_NAMES if name in asked),
        model=args.model,
        prompt=args.prompt_file and args.prompt_file.read_text(encoding="utf-8"),
        tokens=args.tokens,
        heads=args.heads,
        dim=args.head_dim,
        dtype=args.dtype,
        dense_last=args.dense_last,
        disk_dir=disk_dir,
        disk_gbps=args.disk_gbps,
    )


def _text(report: "BenchReport") -> str:
    from omlx_cache.tools.bench.kv_table import HEADERS, cells, footnote

    blocks = []
    for sample in report.samples:
        title = (
            f"{sample.name}: {sample.layers} layer(s), {sample.heads} KV heads of {sample.dim}, "
            f"{sample.tokens} tokens, {sample.dtype}\n"
        )
        rows = [cells(row) for row in sample.rows]
        skipped = "".join(f"left out {line}\n" for line in sample.skipped)
        blocks.append(title + table(HEADERS, rows, bold=uses_styles(sys.stdout)) + skipped)
    return "\n".join([*blocks, footnote(report) + "\n"])


def _rate(text: str) -> float:
    """Return a positive, finite rate; argparse reports anything else."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive rate")
    return rate
