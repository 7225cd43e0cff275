"""`omlx-cache top`: what all stores do, on a full screen."""

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence

from omlx_cache_daemon.errors import OK, CommandError
from omlx_cache_daemon.options import add_format_option, positive_seconds
from omlx_cache_daemon.render import is_interactive, print_json, uses_styles
from omlx_cache_daemon.screen.cells import ink_for
from omlx_cache_daemon.screen.gathering import gathered
from omlx_cache_daemon.screen.lookout import Lookout
from omlx_cache_daemon.screen.view import View
from omlx_cache_daemon.screen.watched import ANSWER_SECONDS
from omlx_cache_daemon.stores import RunningStore, add_store_options, chosen, known


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "top",
        help="watch all stores on a full screen",
        description="Shows what the running stores do: tiers and their budgets, hit tokens over "
        "time, the busiest namespaces, the writer, the latest requests. One that hangs does not "
        "hold up the others. q leaves, ? shows the keys. Without a terminal, with --once or "
        "--format json: one snapshot.",
    )
    parser.add_argument("--once", action="store_true", help="print one snapshot and end")
    parser.add_argument(
        "--every",
        type=positive_seconds,
        default=1.0,
        metavar="SECONDS",
        help="how often to look (default: %(default)g)",
    )
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    first = chosen(args)
    as_json = args.format == "json"
    full = is_interactive(sys.stdout) and sys.stdin.isatty() and not (args.once or as_json)

    def find() -> list[RunningStore]:
        if args.socket is not None:
            return first
        return [store for store in known() if args.pid in (None, store.pid)]

    if full:
        _watch(find, args.every)
        return OK
    view = gathered(find(), min(args.timeout, ANSWER_SECONDS))
    if as_json:
        from omlx_cache_daemon.screen.document import document_of

        print_json(document_of(view))
    else:
        sys.stdout.write(_plain(view))
    return OK


def _watch(find: Callable[[], Sequence[RunningStore]], seconds: float) -> None:
    """Show the full screen until q or Ctrl-C, which are the normal ends."""
    try:
        from omlx_cache_daemon.screen.session import Session
        from omlx_cache_daemon.screen.terminal import full_screen
    except ModuleNotFoundError as error:
        # A Python that was built without curses.
        raise CommandError(f"{error}; --once prints one snapshot") from error

    lookout = Lookout(find, seconds)
    try:
        # So that the first screen has figures, if they come soon.
        lookout.wait(0.5)
        with full_screen(styles=uses_styles(sys.stdout)) as screen:
            Session(screen, lookout, seconds, ink_for(sys.stdout.encoding)).run()
    except KeyboardInterrupt:
        return
    finally:
        lookout.stop()


def _plain(view: View) -> str:
    from omlx_cache_daemon.screen.layout import laid_out

    width = shutil.get_terminal_size((100, 24)).columns
    lines = laid_out(view, width, None, ink_for(sys.stdout.encoding))
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)
