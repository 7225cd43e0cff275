"""`omlx-cache bench`: the speed of the cache, beside the limits of this machine."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.errors import OK, CommandError
from omlx_cache_daemon.render import print_json, uses_styles

PARTS = ("restore", "kv", "disk", "remote")
SIZES = ("tiny", "small", "normal", "large")
_WIDTH = 120
_COPIES = 6
"""How often the KV lies on the disk at once, at most, with room to spare."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "bench",
        description="Times commits, restores, lookups and start-up beside memcpy, raw reads, "
        "mlx-lm's own prompt-cache files and recomputing, in one run, and prints ratios; and what "
        "each KV codec takes, costs and loses.",
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=PARTS,
        help="kv: the codecs; remote: stores that machines share (default: all of them)",
    )
    parser.add_argument(
        "--size",
        choices=SIZES,
        default="small",
        help="how much KV: 64 KiB, 64 MiB, 256 MiB or 4 GiB (default: %(default)s, 64 MiB)",
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="measure this disk (default: temporary files')"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="update the section of this Markdown file"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write one page, to be sent with an issue"
    )


def run(args: argparse.Namespace) -> int:
    for option, place in (
        ("--dir", args.dir),
        ("--write", args.write and args.write.parent),
        ("--report", args.report and args.report.parent),
    ):
        if place is not None and not place.is_dir():
            raise CommandError(f"{option}: there is no directory {place}")
    from rich.console import Console
    from rich.markdown import Markdown

    from omlx_cache.tools.bench.figures import SIZES as sizes
    from omlx_cache.tools.bench.report import around_section, markdown, write_report, write_section
    from omlx_cache.tools.bench.report import run as measure

    parts = list(PARTS) if args.part is None else [args.part]
    folder = args.dir or Path(tempfile.gettempdir())
    needed, free = _COPIES * sizes[args.size].kv_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise CommandError(
            f"{folder} has {format_size(free)} free, and --size {args.size} takes up to "
            f"{format_size(needed)}: take a smaller --size (tiny), or another disk by --dir"
        )
    try:
        # Before minutes of measuring: the first raises ValueError for a file without its markers.
        if args.write is not None:
            around_section(args.write)
        if args.report is not None:
            args.report.open("a").close()
        with tempfile.TemporaryDirectory(prefix="omlx-cache-bench-", dir=args.dir) as workspace:
            results = measure(
                sizes[args.size],
                parts,
                Path(workspace),
                lambda what: print(f"{what} ...", file=sys.stderr),
            )
    except (RuntimeError, ValueError) as error:
        raise CommandError(str(error)) from error
    if args.format == "json":
        print_json(results.to_dict())
    else:
        colours: Literal["auto"] | None = "auto" if uses_styles(sys.stdout) else None
        Console(width=_WIDTH, color_system=colours).print(Markdown(markdown(results)))
    if args.write is not None:
        write_section(results, args.write)
    if args.report is not None:
        write_report(results, args.report)
    return OK
