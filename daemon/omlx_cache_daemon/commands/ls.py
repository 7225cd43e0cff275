"""`omlx-cache ls`: the namespaces of a store, or the pages of one."""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import datetime

from omlx_cache.control.replies import NamespaceRow, PageRow, ProcessRow
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.options import add_format_option, hex_prefix, positive_count
from omlx_cache_daemon.render import duration, print_json, quantity, table, uses_styles
from omlx_cache_daemon.replies import as_answer
from omlx_cache_daemon.source import add_source_options, offline_directory
from omlx_cache_daemon.staleness import with_staleness
from omlx_cache_daemon.stores import the_one

_SHOWN_DIGITS = 16
_SHOWN_SALT_DIGITS = 8
_NAMESPACE_COLUMNS = (
    "namespace",
    "label",
    "salt",
    "pages",
    "bytes",
    "tokens",
    "created_at",
    "used_at",
    "versions",
    "tiers",
    "groups",
)
_PAGE_COLUMNS = ("key", "group", "position", "tokens", "bytes", "tiers", "age_s")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "ls",
        help="list namespaces, or the pages of one",
        description="Lists the namespaces of a store, or the pages of one. When no store is "
        "running, the cold directory is read. A namespace of other versions of mlx, mlx-lm or the "
        "page format than are installed here, or used by the store, is marked as stale.",
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
    cells = [[_cell(column, _shown(column, row)) for column in columns] for row in rows]
    headers = [column.removesuffix("_s").removesuffix("_at").upper() for column in columns]
    sys.stdout.write(table(headers, cells, bold=uses_styles(sys.stdout)))
    if not rows:
        sys.stderr.write("omlx-cache: no pages\n")
    if len(rows) == args.limit:
        sys.stderr.write(f"omlx-cache: only the first {args.limit}; see --limit\n")
    stale = sum(isinstance(row, NamespaceRow) and bool(row.stale) for row in rows)
    if stale:
        sys.stderr.write(f"omlx-cache: {stale} stale; see omlx-cache prune --stale --dry-run\n")
    return OK


def _rows(args: argparse.Namespace) -> Sequence[NamespaceRow | PageRow]:
    directory = offline_directory(args)
    if directory is None:
        client = the_one(args, on_disk=True)
        if args.namespace is not None:
            reply = client.call("ls", limit=args.limit, namespace=args.namespace)
            return as_answer(tuple[PageRow, ...], reply)
        theirs = as_answer(ProcessRow, client.call("ps")).versions
        reply = client.call("ls", limit=args.limit)
        return with_staleness(as_answer(tuple[NamespaceRow, ...], reply), [dict(theirs)])
    # Reading the directory needs NumPy; asking a store does not.
    from omlx_cache_daemon.cold import cold_namespaces, cold_pages

    if args.namespace is None:
        return with_staleness(cold_namespaces(directory, args.limit), [])
    return cold_pages(directory, args.namespace, args.limit)


def _shown(column: str, row: NamespaceRow | PageRow) -> object:
    """Return a row's value; of the versions a stale one says that they are, and what was not there
    is left out."""
    if column != "versions" or not isinstance(row, NamespaceRow):
        return getattr(row, column)
    named = ", ".join(f"{name} {version}" for name, version in row.versions.items() if version)
    return (f"{named} (stale)" if row.stale else named) or "-"


def _cell(column: str, value: object) -> object:
    if column in ("namespace", "key") and isinstance(value, str):
        return value[:_SHOWN_DIGITS]
    if column == "salt" and isinstance(value, str):
        return value.rpartition(":")[2][:_SHOWN_SALT_DIGITS] or "-"
    if column.endswith("_at"):
        return _moment(column, value)
    return quantity(column, value)


def _moment(column: str, value: object) -> str:
    """Return when something was: a use as its age, the rest as a local date."""
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
        if column == "used_at":
            return f"{duration(max(0, round(time.time() - moment.timestamp())))} ago"
        return f"{moment.astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "-"
