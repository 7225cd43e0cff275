"""`omlx-cache rm`: delete everything that is cached in one namespace."""

import argparse
import os
import sys
from pathlib import Path

from omlx_cache.control.errors import ControlError
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import FAILURE, OK, CommandError, NobodyThere, UsageError
from omlx_cache_daemon.options import add_format_option, hex_prefix
from omlx_cache_daemon.render import print_json, quantity, text
from omlx_cache_daemon.replies import Map, as_map, as_maps
from omlx_cache_daemon.source import add_source_options, offline_directory
from omlx_cache_daemon.stores import running, the_one

_TIMEOUT_SECONDS = 60.0
_EVERY_NAMESPACE = 2**31 - 1
_SHOWN_DIGITS = 16
_SHOWN_MATCHES = 5


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "rm",
        help="delete the pages of a namespace",
        description="Deletes every page of one namespace, from the memory and the disk of a "
        "running store, or from the cold directory when no store runs on it. Asks first.",
    )
    parser.add_argument(
        "namespace", type=hex_prefix, metavar="NAMESPACE", help="how its digest begins; see ls"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would be deleted")
    add_source_options(parser)
    parser.set_defaults(timeout=_TIMEOUT_SECONDS)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    directory = offline_directory(args)
    client = the_one(args) if directory is None else _user_of(directory, args.timeout)
    row = _chosen(_namespaces(client, directory), args.namespace)
    if not args.dry_run and not args.yes and not _confirmed(row):
        sys.stderr.write("omlx-cache: nothing was deleted\n")
        return FAILURE
    deleted = 0 if args.dry_run else _delete(client, directory, str(row["namespace"]), args.timeout)
    if args.format == "json":
        print_json({**row, "deleted_pages": deleted})
    elif args.dry_run:
        print(f"would delete {_described(row)}")
    else:
        print(f"deleted {deleted:,} pages of {text(row['namespace'])}")
    return OK


def _user_of(directory: Path, timeout: float) -> Client | None:
    """Return the running store that uses a directory, None when it is nobody's.

    Raises CommandError when a store does not say where its pages are.
    """
    for store in running():
        client = store.client(timeout)
        try:
            cold = as_map(client.call("ps")).get("cold")
        except (NobodyThere, ControlError) as error:
            raise CommandError(f"{directory} may be in use: {error}") from error
        used = cold.get("dir") if isinstance(cold, dict) else None
        if isinstance(used, str) and os.path.realpath(used) == os.path.realpath(directory):
            return client
    return None


def _namespaces(client: Client | None, directory: Path | None) -> list[Map]:
    if client is not None:
        return as_maps(client.call("ls", limit=_EVERY_NAMESPACE))
    # Reading the directory needs NumPy; asking a store does not.
    from omlx_cache_daemon.cold import cold_namespaces

    assert directory is not None
    return cold_namespaces(directory, _EVERY_NAMESPACE)


def _chosen(rows: list[Map], prefix: str) -> Map:
    """Return the one namespace that begins so; raises CommandError with those that do."""
    matches = [row for row in rows if str(row.get("namespace", "")).startswith(prefix)]
    if not matches:
        raise CommandError(f"no namespace begins with {prefix}")
    if len(matches) > 1:
        shown = [str(row["namespace"])[:_SHOWN_DIGITS] for row in matches[:_SHOWN_MATCHES]]
        more = ", ..." if len(matches) > len(shown) else ""
        raise CommandError(
            f"{len(matches)} namespaces begin with {prefix}: {', '.join(shown)}{more}"
        )
    return matches[0]


def _described(row: Map) -> str:
    label = text(row.get("label"))
    return (
        f"{text(row.get('pages'))} pages ({quantity('bytes', row.get('bytes'))}) of "
        f"{text(row['namespace'])}" + (f", {label}" if label else "")
    )


def _confirmed(row: Map) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked, since this is no terminal: give --yes or --dry-run")
    sys.stderr.write(f"Delete {_described(row)}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _delete(client: Client | None, directory: Path | None, digest: str, timeout: float) -> int:
    if client is None:
        from omlx_cache_daemon.cold import remove_cold

        assert directory is not None
        return remove_cold(directory, digest).pages
    # The store waits for what it is writing; the other half of the time is for the deletion.
    reply = as_map(client.call("clear", namespace=digest, timeout=timeout / 2))
    pages = reply.get("pages")
    return pages if isinstance(pages, int) else 0
