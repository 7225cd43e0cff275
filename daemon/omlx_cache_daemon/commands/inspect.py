"""`omlx-cache inspect`: what is known of the pages whose keys begin so."""

import argparse
import sys

from omlx_cache_daemon.errors import FAILURE, OK, CommandError
from omlx_cache_daemon.options import add_format_option, hex_prefix, positive_count
from omlx_cache_daemon.render import facts, print_json, quantity, table
from omlx_cache_daemon.replies import Map, as_maps
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
    return FAILURE if any("error" in page for page in pages) else OK


def _pages(args: argparse.Namespace) -> list[Map]:
    directory = offline_directory(args)
    if directory is None:
        client = the_one(args, on_disk=True)
        return as_maps(client.call("inspect", key_prefix=args.key_prefix, limit=args.limit))
    from omlx_cache_daemon.cold import cold_details

    return cold_details(directory, args.key_prefix, args.limit)


def _render(page: Map) -> str:
    known = ((name, quantity(name, value)) for name, value in page.items() if name != "tensors")
    shown = facts(known)
    tensors = page.get("tensors")
    if not isinstance(tensors, list) or not tensors:
        return shown
    rows = [[tensor.get("name"), tensor.get("dtype"), _shape(tensor)] for tensor in tensors]
    return shown + "\n" + table(("TENSOR", "DTYPE", "SHAPE"), rows)


def _shape(tensor: Map) -> str:
    shape = tensor.get("shape")
    return " x ".join(map(str, shape)) if isinstance(shape, list) else "-"
