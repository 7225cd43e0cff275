"""`omlx-cache rm`: delete namespaces whole, or pages that are stale, old or too many."""

import argparse
import sys
import time

from omlx_cache.control.serialization import document
from omlx_cache.settings.sizes import counted, duration
from omlx_cache_daemon.argument_types import add_format_option, complete_by, period_seconds, size
from omlx_cache_daemon.client import Map, as_map, count_of
from omlx_cache_daemon.errors import FAILURE, OK, CommandError, UsageError
from omlx_cache_daemon.places import Users, add_source_options, existing, known_names
from omlx_cache_daemon.render import lines, print_json, quantity, text
from omlx_cache_daemon.stores import process_of
from omlx_cache_daemon.targets import ABOUT, NAMES, add_kind, current_versions, given_target, meant
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
    target = parser.add_argument("target", nargs="?", metavar=NAMES, help=ABOUT.format(key=""))
    complete_by(target, known_names)
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
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    by_use = args.stale or args.older is not None or args.to is not None
    if by_use is (args.target is not None) or (by_use and args.kind is not None):
        raise UsageError(
            f"say what to delete: either {NAMES}, or --stale, --older PERIOD, --to SIZE"
        )
    deletion = _Unwanted(args) if by_use else _Named(args)
    what, users = deletion.what, deletion.users
    asks = bool(what.get("pages")) and not args.dry_run
    if asks and not args.yes and not _confirmed(deletion.described()):
        return FAILURE
    done: Map = deletion.delete() if asks else {"deleted_pages": 0}
    if args.format == "json":
        directory = None if users.directory is None else str(users.directory)
        print_json({"directory": directory, **what, **done})
    elif not what.get("pages"):
        print(f"nothing to delete in {users}{deletion.left}")
    elif args.dry_run:
        print(f"would delete {deletion.described()}{deletion.left}")
    else:
        deleted = counted(count_of(done, "deleted_pages"), "page")
        print(f"deleted {deleted} from {users}{deletion.left}")
    return OK


class _Named:
    """The deletion of namespaces that a target names."""

    left = ""
    """What pins keep: nothing, since theirs end."""

    def __init__(self, args: argparse.Namespace) -> None:
        target = given_target(args.target, args.kind)
        self._timeout = args.timeout
        self.users = Users.of(args)
        _, self._rows = meant(self.users.namespaces(), target)
        # Only here: reading a directory brings NumPy, which a wrong command line does not wait for.
        from omlx_cache_daemon.quotas import pins_of

        self._digests = [row.namespace for row in self._rows]
        self._pins = pins_of(self.users.directory, self._digests) if self.users.has_files else []
        self.what: Map = {
            "pages": sum(row.pages for row in self._rows),
            "bytes": sum(row.bytes for row in self._rows),
            "namespaces": self._rows,
            "pins": [f"{pin.kind} {pin.name}" for pin in self._pins],
        }

    def described(self) -> str:
        rows = [
            f"{_summed(document(row))} of {text(row.namespace)}, {text(row.label)}"
            for row in self._rows
        ]
        if len(rows) > 1:
            rows.insert(0, f"{_summed(self.what)} of {len(rows)} namespaces:")
        pins = [f"pinned as {pin.kind} {text(pin.name)}" for pin in self._pins]
        return "\n  ".join([*rows, *pins])

    def delete(self) -> Map:
        deleted = [self.users.clear(digest, self._timeout) for digest in self._digests]
        if self._pins and self.users.directory is not None:
            from omlx_cache_daemon.quotas import forget

            forget(self.users.directory, self._pins)
        return {"deleted_pages": sum(deleted)}


class _Unwanted:
    """The deletion of pages that are stale, old or too many."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.users = Users.of(args)
        if self.users.directory is not None:
            existing(self.users.directory)
        self._args = args
        before_ns = None if args.older is None else time.time_ns() - int(args.older * 1e9)
        self._asked: Map = {
            "keep": _versions_in_use(self.users) if args.stale else None,
            "before_ns": None if before_ns is None else max(0, before_ns),
            "to_bytes": args.to,
        }
        self.what = self.users.prune(self._asked, args.timeout, dry_run=True)

    def described(self) -> str:
        """Return a line with the sum, and one for each reason."""
        older, to = self._args.older, self._args.to
        reasons = {
            "stale": "of other versions",
            "older": f"not used for {duration(older or 0)}, or superseded",
            "surplus": f"beyond {quantity('bytes', to)}",
        }
        parts = [f"{_summed(self.what)} from {self.users}"]
        for name, why in reasons.items():
            part = as_map(self.what.get(name))
            if part.get("pages"):
                parts.append(f"{_summed(part)} {why}")
        return "\n  ".join(parts)

    @property
    def left(self) -> str:
        """Return what pins keep of that; nothing for a store of a version without pins."""
        pinned = self.what.get("pinned")
        if not isinstance(pinned, dict) or not pinned.get("pages"):
            return ""
        return f"; left {_summed(pinned)}, pinned"

    def delete(self) -> Map:
        done = self.users.prune(self._asked, self._args.timeout, dry_run=False)
        return {"deleted_pages": count_of(done, "pages")}


def _versions_in_use(users: Users) -> list[Versions]:
    """Return the versions that stay: the installed ones, and those of the running stores.

    Raises CommandError when a store does not say its own, and when there is nothing to stay.
    """
    theirs = []
    for client in users.clients:
        theirs.append(dict(process_of(client).versions))
        if not theirs[-1]:
            raise CommandError(f"{client.path}: the store does not say its versions")
    current = current_versions(theirs)
    if not current:
        raise CommandError("--stale: mlx is not installed here, so no version is the current one")
    return current


def _confirmed(what: str) -> bool:
    """Ask whether something shall be deleted; raises UsageError when nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked, since this is no terminal: give --yes or --dry-run")
    sys.stderr.write(f"Delete {lines(what)}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    sys.stderr.write("omlx-cache: nothing was deleted\n")
    return False


def _summed(what: Map) -> str:
    return f"{counted(count_of(what, 'pages'), 'page')} ({quantity('bytes', what.get('bytes'))})"
