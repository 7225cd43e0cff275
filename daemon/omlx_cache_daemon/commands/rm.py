"""`omlx-cache rm`: delete everything that is cached in a namespace, for a model or under a salt."""

import argparse
from typing import TYPE_CHECKING

from omlx_cache.control.answers import document
from omlx_cache.control.replies import NamespaceRow
from omlx_cache_daemon.deletion import Place, add_deletion_options, chosen_place, confirmed
from omlx_cache_daemon.errors import FAILURE, OK
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json, quantity, text
from omlx_cache_daemon.replies import as_map, count_of
from omlx_cache_daemon.targets import KINDS, given_target, meant

if TYPE_CHECKING:
    from omlx_cache_storage.hints import PinRecord


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "rm",
        help="delete the pages of a namespace, a model or a salt",
        description="Deletes every page of one namespace, of a model or of a salt, from the "
        "memory and the disk of the running stores that use a directory, or from the directory "
        "when none does. Asks first.",
    )
    parser.add_argument(
        "target",
        metavar="NAMESPACE|MODEL|SALT",
        help="how a namespace's digest begins, a model's name or directory, or a salt; see ls. "
        "- reads it from standard input, where no list of processes shows it",
    )
    parser.add_argument("--as", dest="kind", choices=tuple(KINDS), help="what is meant")
    add_deletion_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    target, shown = given_target(args.target)
    place = chosen_place(args)
    rows = meant(place.namespaces(), target, args.kind, shown)
    pins = _pins(place, rows)
    names = _named(pins) if pins else []
    what = _described(rows) + "".join(f"\n  pinned as {name}" for name in names)
    if not args.dry_run and not args.yes and not confirmed(what):
        return FAILURE
    deleted = [0 if args.dry_run else _delete(place, row, args.timeout) for row in rows]
    if pins and not args.dry_run:
        _forget(place, pins)
    if args.format == "json":
        print_json(
            {
                "pins": names,
                "pages": sum(row.pages for row in rows),
                "bytes": sum(row.bytes for row in rows),
                "deleted_pages": sum(deleted),
                "namespaces": [
                    {**document(row), "deleted_pages": count}
                    for row, count in zip(rows, deleted, strict=True)
                ],
            }
        )
    elif args.dry_run:
        print(f"would delete {what}")
    else:
        for row, count in zip(rows, deleted, strict=True):
            print(f"deleted {count:,} pages of {text(row.namespace)}")
    return OK


def _pins(place: Place, rows: list[NamespaceRow]) -> "list[PinRecord]":
    """Return what keeps pages of namespaces."""
    if not _has_pins(place):
        return []
    from omlx_cache_daemon.pinned import pins_of

    return pins_of(place.on_disk(), (row.namespace for row in rows))


def _named(pins: "list[PinRecord]") -> list[str]:
    from omlx_cache_daemon.pinned import named

    return [text(named(pin)) for pin in pins]


def _forget(place: Place, pins: "list[PinRecord]") -> None:
    from omlx_cache_daemon.pinned import forget

    forget(place.on_disk(), pins)


def _has_pins(place: Place) -> bool:
    # Reading what is pinned needs NumPy, which a directory without pins need not wait for.
    return place.directory is not None and (place.directory / "pins.json").exists()


def _described(rows: list[NamespaceRow]) -> str:
    if len(rows) == 1:
        return _row(rows[0])
    pages, nbytes = sum(row.pages for row in rows), sum(row.bytes for row in rows)
    total = f"{pages:,} pages ({quantity('bytes', nbytes)})"
    return "\n  ".join([f"{total} of {len(rows)} namespaces:", *map(_row, rows)])


def _row(row: NamespaceRow) -> str:
    label = text(row.label)
    return f"{row.pages} pages ({quantity('bytes', row.bytes)}) of {text(row.namespace)}" + (
        f", {label}" if label else ""
    )


def _delete(place: Place, row: NamespaceRow, timeout: float) -> int:
    """Delete a namespace, and return how many pages the one had who had most of it, with what no
    running store knew of."""
    digest, deleted = row.namespace, 0
    for client in place.clients:
        # The store waits for what it is writing; the other half of the time is for the deletion.
        reply = as_map(client.call("clear", namespace=digest, timeout=timeout / 2))
        deleted = max(deleted, count_of(reply, "pages"))
    if place.clients and (place.directory is None or not place.directory.is_dir()):
        return deleted
    from omlx_cache_daemon.cold import remove_cold

    return deleted + remove_cold(place.on_disk(), digest).pages
