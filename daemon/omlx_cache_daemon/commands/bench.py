"""`omlx-cache bench`: what the cache does, beside the limits of this machine."""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Literal

from omlx_cache.tools.bench.sizes import SIZES
from omlx_cache_daemon.errors import OK, CommandError, UsageError
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json, uses_styles

_WIDTH = 120


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure this machine: restores and commits beside its limits",
        description="Times commits, restores, look-ups and start-up beside memcpy, raw reads, "
        "mlx-lm's own prompt-cache files and recomputing, in one run, and prints ratios.",
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=("remote",),
        help="remote: only stores that machines share, beside their own clients (docs/remote.md)",
    )
    parser.add_argument(
        "--size",
        choices=tuple(SIZES),
        default="small",
        help="how much KV: 64 MiB, 256 MiB, 4 GiB for small, normal, large (default: %(default)s)",
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="measure this disk (default: temporary files')"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="update the section of this Markdown file"
    )
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    _check_paths(args)
    if args.part == "remote":
        return _run_remote(args)
    from rich.console import Console

    from omlx_cache.tools.bench.report import around_section, print_results, write_section
    from omlx_cache.tools.bench.run import run as measure

    try:
        if args.write is not None:
            around_section(args.write)
        with tempfile.TemporaryDirectory(prefix="omlx-cache-bench-", dir=args.dir) as workspace:
            results = measure(
                SIZES[args.size],
                Path(workspace),
                lambda what: print(f"{what} ...", file=sys.stderr),
            )
    except (RuntimeError, ValueError) as error:
        raise CommandError(str(error)) from error
    if args.format == "json":
        print_json(results.to_dict())
    else:
        colours: Literal["auto"] | None = "auto" if uses_styles(sys.stdout) else None
        print_results(results, Console(width=_WIDTH, color_system=colours))
    if args.write is not None:
        write_section(results, args.write)
    return OK


def _run_remote(args: argparse.Namespace) -> int:
    from omlx_cache.tools.bench.machine import describe
    from omlx_cache.tools.bench.remote import measure_remote
    from omlx_cache.tools.bench.remote_report import document, markdown
    from omlx_cache_storage.errors import CacheError

    if args.write is not None:
        raise UsageError("--write is for all of it: leave `remote` out")
    try:
        with tempfile.TemporaryDirectory(prefix="omlx-cache-bench-", dir=args.dir) as workspace:
            results = measure_remote(
                Path(workspace), lambda what: print(f"{what} ...", file=sys.stderr)
            )
    except (CacheError, RuntimeError, ValueError) as error:
        raise CommandError(str(error)) from error
    if args.format == "json":
        print_json(document(results, describe()))
    else:
        sys.stdout.write(markdown(results, describe()))
    return OK


def _check_paths(args: argparse.Namespace) -> None:
    """Raise CommandError now for what would fail after minutes of measuring."""
    if args.dir is not None and not args.dir.is_dir():
        raise CommandError(f"--dir: there is no directory {args.dir}")
    if args.write is not None and not args.write.parent.is_dir():
        raise CommandError(f"--write: there is no directory {args.write.parent}")
