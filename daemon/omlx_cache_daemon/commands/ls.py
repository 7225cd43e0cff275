"""`omlx-cache ls`: the namespaces of a store, the pages of one, or one page in full."""

import argparse
import sys
import time
from collections.abc import Sequence

from omlx_cache.control.replies import SHOWN_DIGITS, NamespaceRow, PageDetails, PageRow
from omlx_cache.control.serialization import document
from omlx_cache.settings.sizes import duration
from omlx_cache_daemon.argument_types import complete_by, positive_count
from omlx_cache_daemon.errors import FAILURE, OK, CommandError, UsageError
from omlx_cache_daemon.places import EVERY, StorePages, add_source_options, known_pages, place_of
from omlx_cache_daemon.render import (
    facts,
    local_time,
    moment_of,
    print_answer,
    print_json,
    quantity,
    table,
    uses_styles,
    warn,
)
from omlx_cache_daemon.targets import (
    KINDS,
    NAMES,
    Target,
    add_kind,
    given_target,
    meant,
    with_staleness,
)

_SHOWN_SALT_DIGITS = 8
_NAMESPACE_COLUMNS: tuple[str, ...] = (
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
_PAGE_COLUMNS: tuple[str, ...] = ("key", "group", "position", "tokens", "bytes", "tiers", "age_s")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "ls",
        description="Lists the namespaces of a store or a model, the pages of one namespace, or "
        "pages in full: with their tensors and checksums, and whether their files hold what these "
        "say. When no store "
        "is running, the cold directory is read. A namespace of other versions of mlx, mlx-lm or "
        "the page format than are installed here, or used by the store, is marked as stale. BYTES "
        "counts page files; ps, quota and doctor count their directories and the ledger too. Exits "
        "with 1 when a page cannot be read or is damaged.",
    )
    complete_by(
        known_pages,
        parser.add_argument(
            "where",
            nargs="?",
            type=_where,
            metavar=f"{NAMES}[/KEY]",
            help="the beginning of a namespace's digest, a model's name or a salt, and how a key "
            "begins; /KEY looks in every namespace",
        ),
    )
    add_kind(parser, with_key=False)
    parser.add_argument("--limit", type=positive_count, help="default: 1000, of pages in full 20")
    add_source_options(parser)


def _where(given: str) -> tuple[str, str]:
    """Return what is named and how a key begins, each empty where it was not given; a hub's name
    of a model has a slash, too."""
    name, slash, key = given.rpartition("/")
    if slash and (digits := Target(key, None, key).digits):
        return name, digits
    if slash and not name:
        raise argparse.ArgumentTypeError(f"{key!r} is not how a key begins, in hexadecimal digits")
    return given, ""


def run(args: argparse.Namespace) -> int:
    name, key = args.where or ("", "")
    if args.kind is not None and not name:
        raise UsageError("--as says of what kind the name is: give the name, too")
    place, whole = place_of(args), f"{name}/{key}"
    known = place.namespaces(EVERY) if name else []
    if name and key and KINDS["model"](known, Target(whole, None, whole)):
        # A model whose last part looks like a key.
        name, key = whole, ""
    limit = args.limit or (20 if key else 1000)
    of = meant(known, given_target(name, args.kind))[1] if name else []
    if key:
        digests = {row.namespace for row in of}
        # A place limits the pages of all namespaces together.
        pages = place.details(key, EVERY if of else limit)
        meant_pages = [page for page in pages if not of or page.namespace in digests]
        return _show_details(meant_pages[:limit], key, args.format == "json")
    rows: Sequence[NamespaceRow | PageRow]
    if len(of) == 1:
        rows, columns = place.pages(of[0].namespace, limit), _PAGE_COLUMNS
    else:
        theirs = [dict(place.client.process().versions)] if isinstance(place, StorePages) else []
        found = of[:limit] or place.namespaces(limit)
        rows, columns = with_staleness(found, theirs), _NAMESPACE_COLUMNS
    if args.format == "json":
        print_json(rows)
        return OK
    cells = [[_cell(column, row) for column in columns] for row in rows]
    headers = [column.removesuffix("_s").removesuffix("_at").upper() for column in columns]
    sys.stdout.write(table(headers, cells, bold=uses_styles(sys.stdout)))
    stale = sum(isinstance(row, NamespaceRow) and bool(row.stale) for row in rows)
    warn(
        {
            "no pages": not rows,
            f"only the first {limit}; see --limit": len(rows) == limit,
            f"{stale} stale; see omlx-cache rm --stale --dry-run": stale,
        }
    )
    return OK


def _show_details(found: Sequence[PageDetails], key: str, as_json: bool) -> int:
    # Only here: it reads whole pages, and brings NumPy.
    from omlx_cache_daemon.checking import with_verdict

    rows = [with_verdict(page) for page in found]
    if not rows:
        raise CommandError(
            f"no page has a key that begins with {key}; omlx-cache ls shows namespaces, and "
            "omlx-cache ls NAMESPACE the keys of its pages"
        )
    print_answer(as_json, rows, "\n".join(map(_details, rows)))
    return FAILURE if any(row.error is not None for row in rows) else OK


def _details(page: PageDetails) -> str:
    known = [(name, value) for name, value in document(page).items() if name != "tensors"]
    if page.error is None:
        known.remove(("error", None))
    shown = facts((name, quantity(name, value)) for name, value in known)
    if not page.tensors:
        return shown
    rows = [[one.name, one.dtype, " x ".join(map(str, one.shape))] for one in page.tensors]
    return shown + "\n" + table(("TENSOR", "DTYPE", "SHAPE"), rows)


def _cell(column: str, row: NamespaceRow | PageRow) -> object:
    value = getattr(row, column)
    match column:
        case "namespace" | "key":
            return value[:SHOWN_DIGITS]
        case "salt":
            return value.rpartition(":")[2][:_SHOWN_SALT_DIGITS] or "-"
        case "versions":
            named = ", ".join(f"{name} {version}" for name, version in value.items() if version)
            return (f"{named} (stale)" if getattr(row, "stale", None) else named) or "-"
        case "created_at":
            return local_time(value)
        case "used_at":
            moment = moment_of(value)
            seconds = 0 if moment is None else max(0, round(time.time() - moment.timestamp()))
            return "-" if moment is None else f"{duration(seconds)} ago"
    return quantity(column, value)
