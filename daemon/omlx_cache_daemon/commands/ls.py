"""`omlx-cache ls`: the namespaces of a store, or the pages of one."""

import argparse
import sys

from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.options import add_format_option, hex_prefix, positive_count
from omlx_cache_daemon.render import print_json, quantity, table, uses_styles
from omlx_cache_daemon.replies import Map, as_maps
from omlx_cache_daemon.source import add_source_options, offline_directory
from omlx_cache_daemon.stores import the_one

_SHOWN_DIGITS = 16
_NAMESPACE_COLUMNS = ("namespace", "label", "pages", "bytes", "tokens", "groups", "tiers")
_PAGE_COLUMNS = ("key", "group", "position", "tokens", "bytes", "tiers", "age_s")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "ls",
        help="list namespaces, or the pages of one",
        description="Lists the namespaces of a store, or the pages of one. When no store is "
        "running, the cold directory is read.",
    )
    parser.add_argument(
        "namespace", nargs="?", type=hex_prefix, metavar="NAMESPACE", help="how its digest begins"
    )
    parser.add_argument("--limit", type=positive_count, default=1000, help="default: %(default)s")
    add_source_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    rows = _rows(args)
    if args.format == "json":
        print_json(rows)
        return OK
    columns = _NAMESPACE_COLUMNS if args.namespace is None else _PAGE_COLUMNS
    cells = [[_cell(column, row.get(column)) for column in columns] for row in rows]
    headers = [column.removesuffix("_s").upper() for column in columns]
    sys.stdout.write(table(headers, cells, bold=uses_styles(sys.stdout)))
    if not rows:
        sys.stderr.write("omlx-cache: no pages\n")
    if len(rows) == args.limit:
        sys.stderr.write(f"omlx-cache: only the first {args.limit}; see --limit\n")
    return OK


def _rows(args: argparse.Namespace) -> list[Map]:
    directory = offline_directory(args)
    if directory is None:
        wanted = {} if args.namespace is None else {"namespace": args.namespace}
        return as_maps(the_one(args).call("ls", limit=args.limit, **wanted))
    # Reading the directory needs NumPy; asking a store does not.
    from omlx_cache_daemon.cold import cold_namespaces, cold_pages

    if args.namespace is None:
        return cold_namespaces(directory, args.limit)
    return cold_pages(directory, args.namespace, args.limit)


def _cell(column: str, value: object) -> object:
    if column in ("namespace", "key") and isinstance(value, str):
        return value[:_SHOWN_DIGITS]
    return quantity(column, value)
