"""`omlx-cache inspect`: what is known of the pages whose keys begin so."""

import argparse
import sys
from collections.abc import Sequence

from omlx_cache.control.answers import document
from omlx_cache.control.replies import PageDetails
from omlx_cache_daemon.errors import FAILURE, OK, CommandError
from omlx_cache_daemon.options import add_format_option, hex_prefix, positive_count
from omlx_cache_daemon.render import facts, print_json, quantity, table
from omlx_cache_daemon.replies import as_answer
from omlx_cache_daemon.source import add_source_options, offline_directory
from omlx_cache_daemon.stores import the_one
from omlx_cache_daemon.verdict import with_verdict


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="show the pages whose keys begin with a prefix",
        description="Shows pages with their tensors and checksums, and verifies the data of "
        "those that are on disk. When no store is running, the cold directory is read. Exits "
        "with 1 when a page cannot be read or is damaged.",
    )
    parser.add_argument("key_prefix", type=hex_prefix, metavar="KEY_PREFIX")
    parser.add_argument("--limit", type=positive_count, default=20, help="default: %(default)s")
    add_source_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    pages = [with_verdict(page) for page in _pages(args)]
    if not pages:
        raise CommandError(
            f"no page has a key that begins with {args.key_prefix}; omlx-cache ls shows "
            "namespaces, and omlx-cache ls NAMESPACE the keys of its pages"
        )
    if args.format == "json":
        print_json(pages)
    else:
        sys.stdout.write("\n".join(map(_render, pages)))
    return FAILURE if any(page.error is not None for page in pages) else OK


def _pages(args: argparse.Namespace) -> Sequence[PageDetails]:
    directory = offline_directory(args)
    if directory is None:
        client = the_one(args, on_disk=True)
        reply = client.call("inspect", key_prefix=args.key_prefix, limit=args.limit)
        return as_answer(tuple[PageDetails, ...], reply)
    from omlx_cache_daemon.cold import cold_details

    return cold_details(directory, args.key_prefix, args.limit)


def _render(page: PageDetails) -> str:
    known = [(name, value) for name, value in document(page).items() if name != "tensors"]
    if page.error is None:
        known.remove(("error", None))
    shown = facts((name, quantity(name, value)) for name, value in known)
    if not page.tensors:
        return shown
    rows = [[one.name, one.dtype, " x ".join(map(str, one.shape))] for one in page.tensors]
    return shown + "\n" + table(("TENSOR", "DTYPE", "SHAPE"), rows)
