"""`omlx-cache verify`: every page file is read, and its checksum compared."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache_daemon.errors import FAILURE, INTERRUPTED, OK
from omlx_cache_daemon.options import add_format_option, hex_prefix, size
from omlx_cache_daemon.progress import Progress
from omlx_cache_daemon.render import print_json, quantity, text
from omlx_cache_daemon.source import add_source_options, used_directory

if TYPE_CHECKING:
    from omlx_cache_daemon.checking import Verdict
    from omlx_cache_daemon.verifying import Verified

_SHOWN = 50
_TITLES: "dict[Verdict, str]" = {
    "damaged": "damaged",
    "unread": "could not be read",
    "foreign": "passed over by all stores, no page of this user's",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "verify",
        help="read every page of the disk and compare its checksum",
        description="Reads every page file of a cold directory, or of one namespace, past the "
        "system's file cache, and says which are damaged and why. Stores may run meanwhile. Exits "
        "with 1 when a page is damaged or cannot be read.",
    )
    parser.add_argument(
        "namespace",
        nargs="?",
        type=hex_prefix,
        metavar="NAMESPACE",
        help="how a namespace's digest begins; all of them unless it is given",
    )
    parser.add_argument(
        "--rate", type=size, default=0, metavar="SIZE", help="read so much a second at most (50MB)"
    )
    parser.add_argument(
        "--delete",
        action="store_true",
        help="delete what is damaged; no store could use it, and it is computed again",
    )
    parser.add_argument(
        "--after", metavar="PLACE", help="go on behind this file, as an interrupted run names it"
    )
    add_source_options(parser, "this directory, whoever uses it")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    directory = used_directory(args)
    # Reading the directory needs NumPy; a wrong command line does not.
    from omlx_cache_daemon.verifying import Task, Verified, size_of

    task = Task.of(directory, args.namespace, args.after, args.rate, args.delete)
    done = Verified()
    as_json = args.format == "json"
    try:
        with Progress("verifying", size_of(task), unit="bytes", shown=not as_json) as progress:
            for nbytes in done.take(task):
                progress.advance(nbytes)
    except KeyboardInterrupt:
        done.interrupted = True
    if as_json:
        print_json({"directory": str(directory), **done.to_dict()})
    else:
        sys.stdout.write(_told(directory, done, args))
    if done.interrupted:
        return INTERRUPTED
    return FAILURE if done.counts["damaged"].pages or done.counts["unread"].pages else OK


def _told(directory: Path, done: "Verified", args: argparse.Namespace) -> str:
    good = done.counts["good"]
    where = text(str(directory))
    lines = [f"{_pages(good.pages)} ({quantity('bytes', good.nbytes)}) good in {where}"]
    for verdict, title in _TITLES.items():
        count = done.counts[verdict]
        if not count.pages:
            continue
        lines.append(f"{count.pages:,} {title} ({quantity('bytes', count.nbytes)}):")
        shown = done.found[verdict][:_SHOWN]
        lines += [f"  {text(one.place)}: {text(one.trouble)}" for one in shown]
        lines += [f"  and {count.pages - len(shown):,} more"] * (count.pages > len(shown))
    if done.deleted:
        lines.append(f"{_pages(done.deleted)} deleted")
    elif done.counts["damaged"].pages:
        lines.append("omlx-cache verify --delete deletes the damaged ones")
    if done.interrupted:
        after = f"; go on with --after {text(done.last)}" if done.last else ""
        lines.append(f"interrupted: the rest was not read{after}")
    return "\n".join(lines) + "\n"


def _pages(count: int) -> str:
    return f"{count:,} page" + "s" * (count != 1)
