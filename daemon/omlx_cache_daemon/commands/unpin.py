"""`omlx-cache unpin`: let pages of a directory leave in their turn again."""

import argparse

from omlx_cache_daemon.errors import OK, UsageError
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json, text
from omlx_cache_daemon.source import add_source_options, used_directory
from omlx_cache_daemon.targets import PIN_KINDS, given_target


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "unpin",
        help="end a pin, or all of them",
        description="Ends what omlx-cache pin began: the pages count as used now, and leave in "
        "their turn. Nothing is deleted.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="NAMESPACE|MODEL|SALT|KEY",
        help="what was pinned, as omlx-cache pin shows it. - reads it from standard input",
    )
    parser.add_argument("--all", action="store_true", help="every pin of the directory")
    parser.add_argument("--as", dest="kind", choices=PIN_KINDS, help="what is meant")
    add_source_options(parser, "this directory, whoever uses it")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    if (args.target is None) != args.all:
        raise UsageError("say what to unpin, or --all; omlx-cache pin shows what is pinned")
    target, shown = (None, "") if args.target is None else given_target(args.target)
    directory = used_directory(args)
    # Reading the directory needs NumPy; a wrong command line does not.
    from omlx_cache_daemon.pinned import named, unpin

    ended = unpin(directory, target, args.kind, shown)
    if args.format == "json":
        pins = [{"kind": one.kind, "name": one.name} for one in ended]
        print_json({"directory": str(directory), "unpinned": pins})
    elif not ended:
        print(f"nothing is pinned in {text(str(directory))}")
    for one in ended if args.format == "text" else ():
        print(f"unpinned {text(named(one))}")
    return OK
