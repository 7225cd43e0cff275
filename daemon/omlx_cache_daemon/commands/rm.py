"""`omlx-cache rm`: delete namespaces whole, or pages that are stale, old or too many."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from omlx_cache.control.serialization import document
from omlx_cache.settings.sizes import counted, duration
from omlx_cache_daemon.argument_types import complete_by, period_seconds, size
from omlx_cache_daemon.client import Map, as_map, count_of
from omlx_cache_daemon.errors import FAILURE, OK, CommandError, UsageError
from omlx_cache_daemon.places import Users, add_source_options, existing, known_names
from omlx_cache_daemon.render import confirmed, print_json, quantity, text
from omlx_cache_daemon.targets import (
    ABOUT,
    NAMES,
    Target,
    add_kind,
    current_versions,
    given_target,
    meant,
)
from omlx_cache_storage.documents import Versions

_TIMEOUT_SECONDS = 60.0


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "rm",
        description="Deletes every page of a namespace, a model or a salt, and its pins. With "
        "--stale, --older and --to it deletes stale, old or too many pages instead, and no pinned "
        "page. It deletes from the memory and the disk of the running stores of the directory; if "
        "none runs, from the disk. It asks first. `omlx-cache quota` sets a lasting limit.",
    )
    complete_by(
        known_names,
        parser.add_argument("target", nargs="?", metavar=NAMES, help=ABOUT.format(key="")),
    )
    add_kind(parser, with_key=False)
    parser.add_argument(
        "--stale",
        action="store_true",
        help="delete namespaces of versions of mlx, mlx-lm or the page format that are neither "
        "installed here nor used by a running store of the directory. A program of another "
        "environment, or one without a control socket, may still use them: try --dry-run first",
    )
    parser.add_argument(
        "--older",
        type=period_seconds,
        metavar="PERIOD",
        help="delete pages that were not used for this long (30d, 12h), and superseded pages",
    )
    parser.add_argument(
        "--to",
        type=size,
        metavar="SIZE",
        help="delete the pages that are evicted first, until the directory takes at most this "
        "(20GiB)",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would be deleted")
    add_source_options(parser, "delete in this directory and ask no store")
    parser.set_defaults(timeout=_TIMEOUT_SECONDS)


def run(args: argparse.Namespace) -> int:
    by_use = args.stale or args.older is not None or args.to is not None
    if by_use is (args.target is not None) or (by_use and args.kind is not None):
        raise UsageError(
            f"say what to delete: either {NAMES}, or --stale, --older PERIOD, --to SIZE"
        )
    target = None if by_use else given_target(args.target, args.kind)
    users = Users.of(args)
    found = _unwanted(users, args) if target is None else _named(users, target, args.timeout)
    has_pages = bool(found.what.get("pages"))
    asks = has_pages and not args.dry_run
    if asks and not args.yes:
        if not sys.stdin.isatty():
            raise UsageError("a question needs a terminal: give --yes or --dry-run")
        if not confirmed(f"Delete {found.described}", "nothing was deleted"):
            return FAILURE
    deleted = found.delete() if asks else 0
    if args.format == "json":
        directory = None if users.directory is None else str(users.directory)
        print_json({"directory": directory, **found.what, "deleted_pages": deleted})
    elif not has_pages:
        print(f"nothing to delete in {users}{found.left}")
    elif args.dry_run:
        print(f"would delete {found.described}{found.left}")
    else:
        print(f"deleted {counted(deleted, 'page')} from {users}{found.left}")
    return OK


class Deletion(NamedTuple):
    """What would be deleted, as JSON and in words, and what pins `left` of it. `delete` returns how
    many pages."""

    what: Map
    described: str
    delete: Callable[[], int]
    left: str = ""


def _named(users: Users, target: Target, timeout: float) -> Deletion:
    """Return the deletion of the namespaces that a target names; their pins end."""
    _, rows = meant(users.namespaces(), target)
    # Only here: reading a directory brings NumPy, which a wrong command line does not wait for.
    from omlx_cache_daemon.quotas import forget, pins_of

    digests = [row.namespace for row in rows]
    pins = pins_of(users.directory, digests) if users.has_files else []
    what: Map = {
        "pages": sum(row.pages for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "namespaces": rows,
        "pins": [f"{pin.kind} {pin.name}" for pin in pins],
    }
    described = [
        f"{_summed(document(row))} of {text(row.namespace)}, {text(row.label)}" for row in rows
    ]
    if len(rows) > 1:
        described.insert(0, f"{_summed(what)} of {len(rows)} namespaces:")
    described += [f"pinned as {pin.kind} {text(pin.name)}" for pin in pins]

    def delete() -> int:
        deleted = sum(users.clear(digest, timeout) for digest in digests)
        if pins and users.directory is not None:
            forget(users.directory, pins)
        return deleted

    return Deletion(what, "\n  ".join(described), delete)


def _unwanted(users: Users, args: argparse.Namespace) -> Deletion:
    if users.directory is not None:
        existing(users.directory)
    before_ns = None if args.older is None else time.time_ns() - int(args.older * 1e9)
    asked: Map = {
        "keep": _versions_in_use(users) if args.stale else None,
        "before_ns": None if before_ns is None else max(0, before_ns),
        "to_bytes": args.to,
    }
    what = users.prune(asked, args.timeout, dry_run=True)
    reasons = {
        "stale": "of other versions",
        "older": f"not used for {duration(args.older or 0)}, or superseded",
        "surplus": f"beyond {quantity('bytes', args.to)}",
    }
    described = [f"{_summed(what)} from {users}"]
    described += [
        f"{_summed(part)} {why}"
        for name, why in reasons.items()
        if (part := as_map(what.get(name))).get("pages")
    ]
    # Nothing for a store of a version without pins.
    pinned = as_map(what.get("pinned") or {})
    left = f"; left {_summed(pinned)}, pinned" if pinned.get("pages") else ""

    def delete() -> int:
        return count_of(users.prune(asked, args.timeout, dry_run=False), "pages")

    return Deletion(what, "\n  ".join(described), delete, left)


def _versions_in_use(users: Users) -> list[Versions]:
    """Return the versions that stay: the installed ones, and those of the running stores.

    Raises CommandError when a store does not say its own, and when there is nothing to stay.
    """
    theirs = []
    for client in users.clients:
        theirs.append(dict(client.process().versions))
        if not theirs[-1]:
            raise CommandError(f"{client.path}: the store does not say its versions")
    current = current_versions(theirs)
    if not current:
        raise CommandError("--stale: mlx is not installed here, so no version is the current one")
    return current


def _summed(what: Map) -> str:
    return f"{counted(count_of(what, 'pages'), 'page')} ({quantity('bytes', what.get('bytes'))})"
