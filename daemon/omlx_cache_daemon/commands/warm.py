"""`omlx-cache warm`: prompts prefilled ahead of their use, so that a server restores them."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from omlx_cache_daemon.errors import FAILURE, OK, CommandError, UsageError
from omlx_cache_daemon.logs import show_logs
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import is_interactive, print_json, quantity
from omlx_cache_daemon.server_flags import add_model, add_settings, given_settings


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "warm",
        help="prefill prompts ahead, for a server to restore",
        description="Prefills prompts and writes their cache to the cold tier. FILE is JSON "
        "Lines, a chat or a text per line, or with any other suffix one raw text. A second run "
        "computes nothing. Give the model and cache flags that the server is started with.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    add_model(parser)
    parser.add_argument("--draft-model", help="warm this model's cache as well")
    add_settings(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    if not args.model:
        raise UsageError("--model is missing")
    if not args.file.is_file():
        raise CommandError(f"there is no file {args.file}")
    level = show_logs(None, "warning")
    from omlx_cache.integrations.mlx_lm.server.prompts import PromptFileError, read_prompts
    from omlx_cache.integrations.mlx_lm.server.warm import warm

    try:
        prompts = read_prompts(args.file)
    except PromptFileError as error:
        raise CommandError(str(error)) from error
    if not prompts:
        raise CommandError(f"{args.file} has no prompts")
    with _progress_bar() as progress:
        report = warm(args, {**level, **given_settings(args)}, prompts, progress)
    if args.format == "json":
        print_json({name: getattr(report, name) for name in report.__slots__})
    else:
        sys.stdout.write(
            f"{report.prompts} prompts, {report.warm_prompts} of them warm already: "
            f"{report.computed_tokens:,} tokens computed, "
            f"{quantity('bytes', report.stored_bytes)} written to {report.cold_dir}\n"
        )
    if not report.durable:
        sys.stderr.write("omlx-cache: not everything could be written\n")
    return OK if report.durable else FAILURE


@contextmanager
def _progress_bar() -> Iterator[Callable[[int, int], None]]:
    """Draw a bar on standard error when a person watches; do nothing otherwise."""
    if not is_interactive(sys.stderr):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("warming"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("warming", total=1)
        yield lambda done, total: bar.update(task, completed=done, total=total)
