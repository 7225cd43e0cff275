"""`omlx-cache prune`: delete what is of old versions, was not used lately, or is too much."""

import argparse
import time

from omlx_cache_daemon.client import Client
from omlx_cache_daemon.deletion import (
    Place,
    add_deletion_options,
    chosen_place,
    confirmed,
)
from omlx_cache_daemon.errors import FAILURE, OK, CommandError, UsageError
from omlx_cache_daemon.options import add_format_option, period_seconds, size
from omlx_cache_daemon.render import duration, print_json, quantity
from omlx_cache_daemon.replies import Map, as_map, count_of
from omlx_cache_daemon.staleness import current_versions
from omlx_cache_storage.documents import Versions, as_versions

_COUNTS = ("pages", "bytes")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "prune",
        help="delete pages that are stale, old or too many",
        description="Deletes pages from the running stores that use a directory, or from the "
        "directory when none does; the options may be combined. Asks first. It deletes once: see "
        "omlx-cache quota for a lasting limit.",
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="namespaces of other versions of mlx, mlx-lm or the page format than are installed "
        "here or used by a running store of the directory. A program of another environment, or "
        "one without a control socket, may still want them: look with --dry-run first",
    )
    parser.add_argument(
        "--older",
        type=period_seconds,
        metavar="PERIOD",
        help="pages not used for so long (30d, 12h), and those that newer ones have superseded",
    )
    parser.add_argument(
        "--to",
        type=size,
        metavar="SIZE",
        help="the pages least worth keeping, until the directory takes no more than this (20GiB)",
    )
    add_deletion_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    if not args.stale and args.older is None and args.to is None:
        raise UsageError("say what to delete: --stale, --older PERIOD, --to SIZE")
    place = chosen_place(args)
    keep = _versions_in_use(place) if args.stale else None
    before_ns = None if args.older is None else time.time_ns() - int(args.older * 1e9)
    asked: Map = {
        "keep": keep,
        "before_ns": None if before_ns is None else max(0, before_ns),
        "to_bytes": args.to,
    }
    deletion = _Live(place, asked, args.timeout) if place.clients else _Offline(place, asked)
    what = deletion.chosen()
    deletes = bool(what.get("pages")) and not args.dry_run
    if deletes and not args.yes and not confirmed(f"{_described(what, place, args)}\n"):
        return FAILURE
    done = deletion.delete() if deletes else {}
    if args.format == "json":
        print_json({"directory": _path(place), **what, "deleted_pages": done.get("pages", 0)})
    elif not what.get("pages"):
        print(f"nothing to delete in {place}{_left(what)}")
    elif args.dry_run:
        print(f"would delete {_described(what, place, args)}{_left(what)}")
    else:
        print(f"deleted {_summed(done)} from {place}{_left(what)}")
    return OK


class _Live:
    """The deletion by the running stores that use a directory."""

    def __init__(self, place: Place, asked: Map, timeout: float) -> None:
        self._place = place
        self._clients = place.clients
        self._asked = asked
        self._timeout = timeout

    def chosen(self) -> Map:
        """Return what would be deleted, as the store says that has most of it."""
        if len(self._clients) > 1:
            # Each records what it used, so that all of them know what any of them did.
            for client in self._clients:
                _prune(client, dry_run=True, **self._asked)
        return _most([_prune(client, dry_run=True, **self._asked) for client in self._clients])

    def delete(self) -> Map:
        # The store waits for what it is writing; the other half of the time is for the deletion.
        timeout = self._timeout / 2
        done = _most(
            [
                _prune(client, dry_run=False, timeout=timeout, **self._asked)
                for client in self._clients
            ]
        )
        if self._place.directory is None or not self._place.directory.is_dir():
            return done
        # What no running store knew of: one of another version sees only what it wrote. Not by
        # age, since it does not say what it used.
        rest = _Offline(self._place, {**self._asked, "before_ns": None})
        return _sum(done, rest.delete()) if rest.chosen().get("pages") else done


class _Offline:
    """The deletion of files: of the very pages that were shown."""

    def __init__(self, place: Place, asked: Map) -> None:
        # Reading the directory needs NumPy; asking a store does not.
        from omlx_cache_daemon.cold import choose_cold

        assert place.directory is not None
        self._directory = place.directory
        self._pages = choose_cold(self._directory, **asked)  # type: ignore[arg-type]

    def chosen(self) -> Map:
        return self._pages.to_dict()

    def delete(self) -> Map:
        from omlx_cache_daemon.cold import remove_chosen

        return {**self.chosen(), "pages": remove_chosen(self._directory, self._pages)}


def _prune(client: Client, **args: object) -> Map:
    return as_map(client.call("prune", **args))


def _sum(one: Map, other: Map) -> Map:
    """Return how many pages and bytes two deletions took, the reasons those of the first."""
    return {**one, **{name: count_of(one, name) + count_of(other, name) for name in _COUNTS}}


def _most(replies: list[Map]) -> Map:
    return max(replies, key=lambda reply: count_of(reply, "pages"))


def _versions_in_use(place: Place) -> list[Versions]:
    """Return the versions that stay: the installed ones, and those of the running stores.

    Raises CommandError when a store does not say its own, and when there is nothing to stay.
    """
    theirs = []
    for client in place.clients:
        theirs.append(as_versions(as_map(client.call("ps")).get("versions")))
        if not theirs[-1]:
            raise CommandError(f"{client.path}: the store does not say its versions")
    current = current_versions(theirs)
    if not current:
        raise CommandError("--stale: mlx is not installed here, so no version is the current one")
    return current


def _described(what: Map, place: Place, args: argparse.Namespace) -> str:
    """Return a line with the sum, and one for each reason."""
    reasons = {
        "stale": "of other versions",
        "older": ""
        if args.older is None
        else f"not used for {duration(args.older)}, or superseded",
        "surplus": "" if args.to is None else f"beyond {quantity('bytes', args.to)}",
    }
    lines = [f"{_summed(what)} from {place}"]
    for name, why in reasons.items():
        part = as_map(what.get(name))
        namespaces = part.get("namespaces")
        if part.get("pages") and isinstance(namespaces, list):
            several = "" if len(namespaces) == 1 else "s"
            lines.append(f"  {_summed(part)} {why}, in {len(namespaces)} namespace{several}")
    return "\n".join(lines)


def _left(what: Map) -> str:
    """Return what pins keep of that; nothing for a store of a version without pins."""
    pinned = what.get("pinned")
    if not isinstance(pinned, dict) or not pinned.get("pages"):
        return ""
    return f"; left {_summed(pinned)} that omlx-cache pin keeps"


def _summed(what: Map) -> str:
    return f"{quantity('pages', what.get('pages'))} pages ({quantity('bytes', what.get('bytes'))})"


def _path(place: Place) -> str | None:
    return None if place.directory is None else str(place.directory)
